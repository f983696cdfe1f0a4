"""Strings and programs: everything that can be drawn, by enumeration, and what programs make of strings, by lists."""

import dataclasses
import inspect
import itertools
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import sampled, sampled_many
from scipy.stats import chi2

from icllab.core.errors import InputError
from icllab.tasks import StringPrograms, string_programs
from icllab.tasks.string_programs import power_law

KEY = jax.random.key(3)
PROGRAMS = ((0,), (1, 0), (1,))


def small(noise=0.3):
    """Two functions of two symbols: one replaces symbols, one turns strings to the left."""
    tables, turns = jnp.array([[1, 0], [0, 1]], jnp.int32), jnp.array([0, 1], jnp.int32)
    return StringPrograms(tables, turns, jnp.array([0.5, 0.3, 0.2]), noise, PROGRAMS, (1, 2))


@eqx.filter_jit
def drawn(task, count, key):
    prompts = sampled_many(task, count, key)
    return prompts.tokens, jax.vmap(task.context_of)(prompts), jax.vmap(task.answers)(prompts)


def run(task, program, x):
    """What a program makes of a list, one function after the other."""
    turns = np.asarray(task.turns)
    for function in program:
        turn = int(turns[function] if turns.ndim == 1 else turns[function, x[0]]) % len(x)
        x = [int(task.tables[function][symbol]) for symbol in x[turn:] + x[:turn]]
    return x


def enumerated(task):
    """Context, tokens, which of them are of the answer, and the probability, of every sequence."""
    v, end = task.symbols, task.vocabulary - 1
    right = 1 - float(task.noise) + float(task.noise) / v
    slots, most = max(map(len, task.programs)), max(task.lengths)
    for c, program in enumerate(task.programs):
        head = [v + function for function in program] + [end] * (slots - len(program))
        for n in task.lengths:
            for x, y in itertools.product(itertools.product(range(v), repeat=n), repeat=2):
                wanted = run(task, program, list(x))
                p = float(task.frequencies[c]) / len(task.lengths) / v**n
                for a, b in zip(y, wanted, strict=True):
                    p *= right if a == b else (1 - right) / (v - 1)
                tokens = (*head, *x, end, *y, *[end] * (2 * (most - n)))
                asked = [slots + n <= i < slots + 2 * n for i in range(len(tokens) - 1)]
                yield c, tokens, asked, p


def test_least_losses_are_those_of_conditional_probabilities():
    """Of whoever knows all probabilities, the context's not before it has come."""
    task = small()
    sequences = list(enumerated(task))
    begins = {}
    for _, tokens, _, p in sequences:
        for k in range(1, len(tokens) + 1):
            begins[tokens[:k]] = begins.get(tokens[:k], 0.0) + p
    wanted, total = np.zeros((3, task.tokens - 1)), np.zeros(3)
    for c, tokens, _, p in sequences:
        total[c] += p
        wanted[c] += [-p * np.log(begins[tokens[: k + 1]] / begins[tokens[:k]]) for k in range(1, len(tokens))]
    np.testing.assert_allclose(total, task.frequencies, rtol=1e-6)
    np.testing.assert_allclose(task.context_entropies(), wanted / total[:, None], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(task.entropies(), wanted.sum(axis=0), rtol=1e-6, atol=1e-12)


def test_sequences_come_as_often_as_they_should():
    task, count = small(), 6000
    tokens, contexts, asked = (np.asarray(part) for part in drawn(task, count, KEY))
    found = {}
    for row in map(tuple, tokens.tolist()):
        found[row] = found.get(row, 0) + 1
    sequences = {tokens: (c, asked, p) for c, tokens, asked, p in enumerated(task)}
    assert set(found) <= set(sequences)
    p = np.array([p for *_, p in sequences.values()])
    counts = np.array([found.get(row, 0) for row in sequences])
    assert chi2.sf(np.sum((counts - count * p) ** 2 / (count * p)), len(p) - 1) > 1e-3
    for row, context, mask in zip(map(tuple, tokens.tolist()), contexts, asked, strict=True):
        assert sequences[row][:2] == (context, mask.tolist())


def test_programs_do_one_function_after_the_other():
    task = StringPrograms.init(
        functions=4, symbols=5, lengths=(2, 3, 4), programs=[(2,), (0, 1), (3, 1, 0), (1, 0)], turned=True, key=KEY
    )
    tokens, contexts, asked = (np.asarray(part) for part in drawn(task, 200, KEY))
    assert set(contexts) == {0, 1, 2, 3}
    assert len({tuple(row) for row in np.asarray(task.tables).tolist()}) > 1
    assert len(set(np.asarray(task.turns).tolist())) > 1
    others = 0
    for row, context, mask in zip(tokens, contexts, asked, strict=True):
        n = int(mask.sum())
        x, program = row[3 : 3 + n].tolist(), task.programs[context]
        assert row[3 + n] == task.vocabulary - 1
        assert row[1:][mask].tolist() == row[4 + n : 4 + 2 * n].tolist() == run(task, program, x)
        others += run(task, program[::-1], x) != run(task, program, x)
    assert others > 20
    # Without noise nothing of the answer is open.
    rows = task.context_entropies()
    np.testing.assert_array_equal(rows[:, -4:], 0)
    np.testing.assert_allclose(task.only(1).entropies()[:2], 0, atol=1e-12)


def by_data(lengths=(3,), programs=((0,), (1,), (0, 1), (1, 0), (0, 1, 0)), **options):
    sizes = {"functions": 2, "symbols": 3, "lengths": lengths, "programs": programs}
    return StringPrograms.init(**sizes, by_data=True, key=KEY, **options)


def test_turns_by_data_are_those_of_the_first_symbol():
    task = by_data(lengths=(2, 3))
    assert task.turns.shape == task.tables.shape
    assert len({tuple(row) for row in np.asarray(task.turns).tolist()}) == 2
    tokens, contexts, asked = (np.asarray(part) for part in drawn(task, 200, KEY))
    assert set(contexts) == set(range(5))
    for row, context, mask in zip(tokens, contexts, asked, strict=True):
        n = int(mask.sum())
        assert row[1:][mask].tolist() == run(task, task.programs[context], row[3 : 3 + n].tolist())
    (strings, answers), (longer, _) = task.every_string((1, 0))
    assert (strings.shape, longer.shape) == ((9, 2), (27, 3))
    assert answers.tolist() == [run(task, (1, 0), x) for x in strings.tolist()]


def nearest(task, program):
    """By trying every table and every turn by data of three symbols on all strings."""
    cases = []
    for n in task.lengths:
        strings = np.array(list(itertools.product(range(3), repeat=n)))
        cases.append((strings, np.array([run(task, program, x) for x in strings.tolist()])))
    errors = []
    for turns in itertools.product(range(3), repeat=3):
        places = [(np.arange(x.shape[1]) + np.array(turns)[x[:, :1]]) % x.shape[1] for x, _ in cases]
        for table in itertools.product(range(3), repeat=3):
            answers = [np.array(table)[np.take_along_axis(x, at, 1)] for (x, _), at in zip(cases, places, strict=True)]
            errors.append(np.mean([np.mean(y != wanted) for y, (_, wanted) in zip(answers, cases, strict=True)]))
    return min(errors)


@pytest.mark.parametrize("lengths", [(3,), (2, 3)])
def test_a_composition_of_turns_by_data_is_no_function(lengths):
    """Every function that there is differs from it; from a single function the nearest one does not."""
    task = by_data(lengths)
    for program in task.programs:
        error = task.nearest_function_error(program)
        assert error == pytest.approx(nearest(task, program), abs=1e-12)
        assert error == 0 if len(program) == 1 else error > 0.05


def test_the_nearest_function_may_lose_symbols():
    """Of tables with loss a function is its own nearest one, and of compositions every table is tried."""
    lossy = dataclasses.replace(by_data(), tables=jnp.array([[0, 0, 1], [2, 1, 1]], jnp.int32))
    errors = [lossy.nearest_function_error(program) for program in lossy.programs]
    assert errors == pytest.approx([nearest(lossy, program) for program in lossy.programs], abs=1e-12)
    assert errors[:2] == [0.0, 0.0]


def test_turns_by_data_lose_strings_and_a_second_turn_depends_on_another_symbol():
    """A function's turn is that of its first symbol; that of a composition changes with other symbols too."""
    task = by_data()
    ((strings, once),) = task.every_string((0,))
    assert len({tuple(row) for row in once.tolist()}) < len(strings)
    ((_, twice),) = task.every_string((0, 1))

    def turn(answers, x):
        return {r for r in range(3) if np.array_equal(answers, np.roll(x, -r))}

    plain = dataclasses.replace(task, tables=jnp.tile(jnp.arange(3, dtype=jnp.int32), (2, 1)))
    ((_, once),), ((_, twice),) = (plain.every_string(program) for program in ((0,), (0, 1)))
    for answers, depends in ((once, False), (twice, True)):
        sets = [
            [turn(y, x) for x, y in zip(strings, answers, strict=True) if x[0] == first and len(set(x.tolist())) == 3]
            for first in range(3)
        ]
        assert any(set.intersection(*rows) == set() for rows in sets) is depends


def test_a_composition_in_the_group_is_a_function():
    """Permutations with turns: each composition of two or three is one again, and keeps all strings apart."""
    programs = [(0,), (1,), (2,), (0, 1), (2, 1), (2, 0, 1)]
    task = StringPrograms.init(functions=3, symbols=4, lengths=(3,), programs=programs, turned=True, key=KEY)
    assert [task.nearest_function_error(program) for program in task.programs] == [0.0] * 6
    for program in task.programs:
        ((strings, answers),) = task.every_string(program)
        assert len({tuple(row) for row in answers.tolist()}) == len(strings)
    np.testing.assert_allclose(task.guessing_losses(), np.log(4), rtol=1e-12)


def test_guessing_costs_the_entropy_of_the_symbols_of_each_place():
    task = by_data(lengths=(2, 3), noise=0.3)
    for program, loss in zip(task.programs, task.guessing_losses(), strict=True):
        entropies = []
        for n in task.lengths:
            answers = [run(task, program, list(x)) for x in itertools.product(range(3), repeat=n)]
            for place in zip(*answers, strict=True):
                p = 0.7 * np.array([place.count(symbol) for symbol in range(3)]) / len(place) + 0.1
                entropies.append(-np.sum(p * np.log(p)))
        assert loss == pytest.approx(np.mean(entropies), rel=1e-6)
    assert task.guessing_losses().min() < np.log(3) - 1e-3


def test_frequencies_are_a_power_law_and_programs_can_be_left_out():
    task = StringPrograms.init(functions=4, symbols=3, lengths=(1,), exponent=0.5, key=KEY)
    assert task.programs == ((0,), (1,), (2,), (3,))
    np.testing.assert_allclose(task.frequencies[0] / task.frequencies, np.arange(1, 5) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(power_law(3, 0.0), 1 / 3)
    part = task.only(1, 3)
    np.testing.assert_allclose(part.frequencies, np.array([0, 2**0.5, 0, 1]) / (1 + 2**0.5), rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(part.context_entropies()[:, 0]), [True, False, True, False])
    contexts = np.asarray(drawn(part, 900, KEY)[1])
    assert abs(np.sum(contexts == 1) - 900 * 0.5858) < 4 * (900 * 0.2426) ** 0.5
    assert set(contexts) == {1, 3}
    assert len({tuple(row) for row in np.asarray(task.tables).tolist()}) == 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StringPrograms.init(functions=3, symbols=2, lengths=(1,), key=KEY), "functions: expected few enough"),
        (lambda: StringPrograms.init(functions=2, symbols=3, lengths=(2, 1), key=KEY), "lengths: expected different"),
        (lambda: StringPrograms.init(functions=2, symbols=3, lengths=(0, 1), key=KEY), "lengths: expected an integer"),
        (
            lambda: StringPrograms.init(functions=2, symbols=3, lengths=(1,), programs=[(0,), (2,)], key=KEY),
            "programs: expected functions from 0 to 1, at least one, got (2,)",
        ),
        (
            lambda: StringPrograms.init(functions=2, symbols=3, lengths=(1,), programs=[(0,), ()], key=KEY),
            "programs: expected functions from 0 to 1, at least one, got ()",
        ),
        (
            lambda: StringPrograms.init(functions=2, symbols=3, lengths=(1,), programs=[(0,), (0,)], key=KEY),
            "programs: expected at least one program, all different",
        ),
        (
            lambda: StringPrograms.init(functions=2, symbols=3, lengths=(1,), noise=1.5, key=KEY),
            "noise: expected a number from 0 to 1",
        ),
        (lambda: by_data(lengths=(1,)), "programs: expected compositions that do not equal a single function"),
        (
            lambda: by_data(lengths=(13,), programs=((0,),)).guessing_losses(),
            "lengths: expected at most 100000 strings",
        ),
        (lambda: by_data(lengths=(47,)), "symbols: expected at most 100000 turns by data"),
        (lambda: small().only(3), "contexts: expected integers from 0 to 2, got 3"),
        (lambda: small().only(0).only(1), "contexts: expected at least one of frequency above 0"),
        (
            lambda: StringPrograms(jnp.eye(2, dtype=int) * 2, jnp.zeros(2, int), jnp.ones(1), 0.0, ((0,),), (1,)),
            "tables: expected symbols from 0 to V - 1",
        ),
        (
            lambda: StringPrograms(jnp.eye(2, dtype=int), jnp.zeros(2, int), jnp.full(1, 0.5), 0.0, ((0,),), (1,)),
            "frequencies: expected 1 numbers >= 0 that sum to 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, message, monkeypatch):
    monkeypatch.setattr(string_programs, "_DRAWS", 3)
    with pytest.raises(InputError) as error:
        build()
    assert message in str(error.value)


def test_turns_of_another_number_are_refused():
    """As a user without a type checker asks."""
    fields = {"tables": jnp.eye(2, dtype=int), "turns": jnp.zeros(3, int), "frequencies": jnp.ones(1)}
    made = SimpleNamespace(**fields, noise=jnp.zeros(()), programs=((0,),), lengths=(1,))
    with pytest.raises(InputError, match="turns: expected one for each of 2 functions"):
        inspect.unwrap(StringPrograms.__check_init__)(made)


def test_a_prompt_of_no_program_has_no_number():
    task = small()
    prompt = sampled(task, jax.random.key(0))
    assert int(task.context_of(prompt)) >= 0
    wrong = eqx.tree_at(lambda p: p.tokens, prompt, prompt.tokens.at[0].set(0))  # a symbol
    with pytest.raises(InputError, match="prompt: expected tokens that begin with a program"):
        task.context_of(wrong)
    assert int(eqx.filter_jit(StringPrograms.context_of)(task, wrong)) == -1
