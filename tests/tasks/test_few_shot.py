"""Few-shot prompts: which pairs, which labels, which tokens count, and what has no answer."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import with_bos
from character_tokenizer import CharacterTokenizer
from drawing import sampled, sampled_many

from icllab.core.errors import InputError, ResultWarning
from icllab.tasks import FewShot, pair_tables
from icllab.tasks.few_shot import FewShotPrompt

TOKENIZER = CharacterTokenizer("hot", "cold", " cold")
PAIRS = (("hot", "cold"), ("up", "down"), ("in", "out"), ("wet", "dry"), ("big", "small"))
KINDS = tuple(
    [(name, "animal") for name in ("cat", "dog", "fly", "owl")] + [(name, "plant") for name in ("oak", "elm", "ivy")]
)


def few_shot(pairs=PAIRS, tokenizer=TOKENIZER, **options):
    return FewShot.from_pairs(pairs, tokenizer, **({"shots": 3} | options))


def texts(task, count=400, seed=0):
    """Prompts as examples (item, label), query and answer, read back from their tokens."""
    prompts = jax.jit(lambda keys: jax.vmap(lambda key: task.sample(key=key))(keys))(
        jax.random.split(jax.random.key(seed), count)
    )
    for tokens, mask, answer in zip(*map(np.asarray, (prompts.tokens, prompts.mask, prompts.answer)), strict=True):
        text, target = TOKENIZER.decode(tokens[mask]), TOKENIZER.decode(tokens[answer])
        *lines, last = text.split("\n")
        assert last.endswith(target)
        assert target.startswith(" ")
        yield [tuple(line.split(" -> ")) for line in lines], last.removesuffix(" ->" + target), target[1:]


def test_pairs_are_different_right_and_each_as_often_the_query():
    right, queries = dict(PAIRS), []
    for examples, query, answer in texts(few_shot()):
        assert len({query, *(item for item, _ in examples)}) == 4
        assert all(right[item] == label for item, label in examples)
        assert answer == right[query]
        queries.append(query)
    counts = np.array([queries.count(item) for item in right])
    assert np.all(np.abs(counts - 80) < 4.5 * np.sqrt(400 * 0.2 * 0.8))


def test_shuffled_examples_keep_their_words_and_no_label_while_pairs_of_a_key_stay():
    right = dict(PAIRS)
    for one, other in zip(texts(few_shot(), 50), texts(few_shot(labels="shuffled"), 50), strict=True):
        assert [item for item, _ in one[0]] == [item for item, _ in other[0]]
        assert sorted(label for _, label in one[0]) == sorted(label for _, label in other[0])
        assert all(right[item] != label for item, label in other[0])
        assert one[1:] == other[1:]
    for examples, query, answer in texts(few_shot(labels="shuffled", shots=1), 50):
        assert examples[0][1] not in (right[examples[0][0]], answer)
        assert right[query] == answer


def test_more_shots_add_pairs_in_front_of_the_same():
    for fewer, more in zip(texts(few_shot(shots=1), 30), texts(few_shot(shots=4), 30), strict=True):
        assert fewer[1:] == more[1:]
        assert fewer[0] == more[0][-1:]
    assert all(not examples for examples, _, _ in texts(few_shot(shots=0), 5))


def test_balanced_examples_have_each_answer_equally_often_and_shuffling_says_nothing_of_the_items():
    right, agreements = dict(KINDS), []
    for examples, _, _ in texts(few_shot(KINDS, shots=2, balanced=True)):
        assert sorted(right[item] for item, _ in examples) == ["animal", "plant"]
        assert all(right[item] == label for item, label in examples)
    for examples, _, _ in texts(few_shot(KINDS, shots=2, balanced=True, labels="shuffled")):
        assert sorted(label for _, label in examples) == ["animal", "plant"]
        agreements.append(right[examples[0][0]] == examples[0][1])
    assert abs(np.mean(agreements) - 0.5) < 4.5 * 0.5 / 20


def test_symbols_stand_for_answers_by_one_map_in_a_prompt_that_changes_between_prompts():
    right, maps = dict(KINDS), set()
    task = few_shot(KINDS, shots=4, balanced=True, labels="symbols", symbols=("foo", "bar", "zip"))
    for examples, query, answer in texts(task):
        mapping = {right[item]: label for item, label in examples}
        assert len(set(mapping.values())) == 2
        assert all(mapping[right[item]] == label for item, label in examples)
        assert mapping[right[query]] == answer
        maps.add(tuple(sorted(mapping.items())))
    assert maps == {(("animal", a), ("plant", b)) for a, b in itertools.permutations(("foo", "bar", "zip"), 2)}
    same = few_shot(KINDS, shots=4, balanced=True)
    for one, other in zip(texts(task, 30), texts(same, 30), strict=True):
        assert ([item for item, _ in one[0]], one[1]) == ([item for item, _ in other[0]], other[1])


def test_only_the_answer_is_scored_and_its_tokens_are_summed(getkey):
    task = few_shot(prefix="Opposites:\n")
    prompt = sampled(task, getkey())
    size = int(prompt.answer.sum())
    begin = int(prompt.query) + 1
    np.testing.assert_array_equal(np.flatnonzero(prompt.scored), np.arange(begin - 1, begin - 1 + size))
    logits = jax.random.normal(getkey(), (prompt.positions, task.vocabulary))
    losses = np.asarray(task.loss(logits, prompt))
    logs = np.asarray(jax.nn.log_softmax(logits))
    expected = [logs[i, prompt.tokens[i + 1]] for i in range(begin - 1, begin - 1 + size)]
    np.testing.assert_allclose(losses[np.asarray(prompt.scored)], -np.array(expected), rtol=1e-5)
    assert np.isnan(losses[~np.asarray(prompt.scored)]).all()
    np.testing.assert_allclose(task.log_likelihood(logits, prompt), np.sum(expected), rtol=1e-5)
    right = jax.nn.one_hot(prompt.tokens[1:], task.vocabulary)
    assert task.exact_match(right, prompt) == 1
    for i in range(begin - 1, begin - 1 + size):
        assert task.exact_match(right.at[i].multiply(-1), prompt) == 0
    assert task.exact_match(right.at[0].multiply(-1), prompt) == 1
    assert np.isnan(task.exact_match(right * jnp.nan, prompt))


def test_alternatives_differ_in_the_answer_alone(getkey):
    task = few_shot()
    prompt = sampled(task, getkey())
    written = task.alternatives(prompt)
    begin = int(prompt.query) + 1
    before = TOKENIZER.decode(np.asarray(prompt.tokens)[:begin])
    rows = [
        TOKENIZER.decode(row[mask]) for row, mask in zip(*map(np.asarray, (written.tokens, written.mask)), strict=True)
    ]
    assert rows == [f"{before} {answer}" for _, answer in PAIRS]
    np.testing.assert_array_equal(jax.vmap(lambda p: p.query)(written), [begin - 1] * 5)
    size = prompt.tokens.size
    right = [i for i, row in enumerate(np.asarray(written.tokens)) if np.array_equal(row[:size], prompt.tokens)]
    assert len(right) == 1
    np.testing.assert_array_equal(np.asarray(written.answer)[right[0], :size], prompt.answer)


def test_less_context_and_another_future_keep_what_counts():
    prompt, other = (sampled(few_shot(), jax.random.key(seed)) for seed in (0, 3))
    query = int(prompt.query)
    short = prompt.alone(query, size=3)
    assert isinstance(short, FewShotPrompt)
    np.testing.assert_array_equal(short.tokens, np.asarray(prompt.tokens)[query - 2 : query + 2])
    np.testing.assert_array_equal(short.scored, [False, False, True])
    mixed = prompt.replaced_after(query, other)
    np.testing.assert_array_equal(mixed.tokens[: query + 1], prompt.tokens[: query + 1])
    np.testing.assert_array_equal(mixed.tokens[query + 1 :], other.tokens[query + 1 :])
    np.testing.assert_array_equal(mixed.answer[query + 1 :], other.answer[query + 1 :])
    assert not bool(jnp.any(mixed.answer & ~mixed.mask))
    plain = FewShotPrompt(prompt.tokens, prompt.mask)
    np.testing.assert_array_equal(plain.scored, prompt.mask[1:])
    np.testing.assert_array_equal(plain.replaced_after(2, plain).tokens, plain.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": CharacterTokenizer(">\n")}, None),
        ({"tokenizer": CharacterTokenizer("n\n")}, "template: expected tokens that end where the parts of"),
        ({"tokenizer": CharacterTokenizer("> d")}, "template: expected tokens that end where the parts of"),
        ({"tokenizer": CharacterTokenizer("\nw")}, "template: expected tokens that end where the parts of"),
        ({"tokenizer": CharacterTokenizer("t ")}, "template: expected tokens that end where the parts of"),
        ({"tokenizer": CharacterTokenizer("g -> c")}, "template: expected tokens that end where the parts of"),
        ({"template": "{} -> {}"}, "template: expected {} for the item and for the answer, and text after each"),
        ({"shots": 5}, "pairs: expected at least 6 pairs for 5 shots, got 5"),
        ({"labels": "symbols"}, "labels: expected examples of every answer if answers are symbols, got 'symbols'"),
        ({"pairs": (*PAIRS, ("up", "off"))}, "pairs: expected pairs of an item and its answer, with different items"),
        ({"pairs": KINDS, "balanced": True}, "balanced: expected an equal number of each answer among 3 examples"),
        ({"pairs": KINDS, "balanced": True, "shots": 6}, "got '2 answers, the rarest of 3 pairs'"),
        (
            {"pairs": KINDS, "balanced": True, "shots": 4, "labels": "symbols", "symbols": ("foo", "plant")},
            "symbols: expected at least 2 different symbols that are not answers",
        ),
        ({"vocabulary": 3}, "tokens at 0: expected an id from 0 to 2"),
    ],
)
def test_what_has_no_answer_is_refused(options, message):
    if message is None:
        few_shot(**options)
        return
    with pytest.raises(InputError) as error:
        few_shot(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_items_that_read_the_same_are_refused():
    class Unknown(CharacterTokenizer):
        def encode(self, text, add_special_tokens=True):
            return super().encode(text.translate(str.maketrans("wb", "??")), add_special_tokens)

    few_shot(tokenizer=Unknown())
    with pytest.raises(InputError, match="pairs: expected items that differ in their tokens"):
        few_shot((*PAIRS, ("bet", "win")), tokenizer=Unknown())


def test_a_padded_size_is_enough_for_every_prompt_and_reached(getkey):
    for options in ({"labels": "shuffled"}, {"labels": "shuffled", "shots": 1}):
        task = few_shot(**options)
        sizes = [int(p.sum()) for p in np.asarray(sampled_many(task, 300, getkey()).mask)]
        assert max(sizes) == task.tokens


def test_the_tables_are_pairs_of_different_items():
    tables = {"capitals": 72, "antonyms": 72, "kinds": 56, "feelings": 56}
    for name, size in tables.items():
        table = getattr(pair_tables, name.upper())
        assert len(table) == size == len({item for item, _ in table})
        assert len({answer for _, answer in table}) == (2 if size == 56 else size)
    assert dict(pair_tables.sums(2)) == {f"{a}+{b}": str(a + b) for a in range(3) for b in range(3)}
    assert eqx.tree_equal(few_shot(), few_shot())


def test_examples_and_a_question_without_any_are_the_prompt():
    task, bare = few_shot(prefix="^"), few_shot(shots=0, prefix="\n")
    for seed in range(4):
        whole, query = (sampled(part, jax.random.key(seed)) for part in (task, bare))
        examples = task.examples(key=jax.random.key(seed))
        shown = np.asarray(examples.tokens)[np.asarray(examples.mask)][:-2]  # the last two stand for a query
        joined = [*shown, *np.asarray(query.tokens)[np.asarray(query.mask)]]
        assert joined == list(np.asarray(whole.tokens)[np.asarray(whole.mask)])


def test_a_prompt_begins_with_what_the_tokenizer_puts_before_a_text_once(getkey):
    """Everything else of the prompt is that without it, and a prefix that has it does not get it twice."""
    tokenizer = with_bos()
    bare = few_shot(tokenizer=tokenizer, bos=False)
    task, prefixed = few_shot(tokenizer=tokenizer), few_shot(tokenizer=tokenizer, prefix="<s>")
    assert task.beginning == (0,)
    assert "beginning=(0,)" in repr(task)
    assert bare.beginning == prefixed.beginning == ()
    for seed in range(5):
        prompts = [sampled(part, jax.random.key(seed)) for part in (bare, task, prefixed)]
        plain, whole, other = ([*np.asarray(p.tokens)[np.asarray(p.mask)]] for p in prompts)
        assert whole == other == [0, *plain]
        np.testing.assert_array_equal(np.asarray(prompts[1].answer)[1:], prompts[0].answer)
        assert int(prompts[1].query) == int(prompts[0].query) + 1
    assert task.tokens == bare.tokens + 1


def test_settings_of_a_tokenizer_do_not_reach_the_prompts():
    tokenizer = with_bos()
    task = few_shot(tokenizer=tokenizer)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    with pytest.warns(ResultWarning, match="switched off truncation to 2 tokens, padding"):
        assert eqx.tree_equal(few_shot(tokenizer=tokenizer), task)
