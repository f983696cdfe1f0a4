"""Sections of language models: networks of known answer, and judges of datasets that say yes, no and undecided."""

import string

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from character_tokenizer import CharacterTokenizer

from icllab import constructions, tasks
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.examination.examining import Examination, answer, examine
from icllab.examination.report import html
from icllab.examination.results import Answered
from icllab.examination.section import Pace, Size
from icllab.examination.sections import SECTIONS, context, few_shot, induction_heads, repeats, text
from icllab.examination.sentences import first_sentences, references
from icllab.examination.subject import Subject, task_and_tokenizer
from icllab.tasks import pair_tables
from icllab.tasks.text_files import Documents

LETTERS = string.ascii_lowercase[:20]
SMALL, PACE = Size("test", 384, 64, 64, 20), Pace(0.1, 0.01)


def periodic(letters=LETTERS, tokens=24):
    """A text of many documents, each a block of six letters again and again."""
    rng = np.random.default_rng(0)
    blocks = ["".join(rng.choice(list(letters), 6, replace=False)) for _ in range(60)]
    documents = Documents(tuple(map(str, range(60))), tuple((block * 8).encode() for block in blocks))
    return tasks.Text.from_documents(documents, tokens=tokens, alphabet=letters.encode())


TEXT = periodic()
HEAD = constructions.induction_head(TEXT.vocabulary, tokens=24)


class Mixed(AbstractPredictor):
    """Probabilities of a predictor mixed with equal ones."""

    predictor: AbstractPredictor
    share: float = eqx.field(static=True)

    def __call__(self, prompt):
        chances = jax.nn.softmax(self.predictor(prompt))
        return jnp.log((1 - self.share) * chances + self.share / chances.shape[-1])


class Reader(AbstractPredictor):
    """It answers by a table, with a part of its confidence after any example and the rest after a right one."""

    table: jax.Array
    arrow: int = eqx.field(static=True)
    strict: float = eqx.field(static=True)

    def __call__(self, prompt):
        tokens = prompt.tokens[:-1]
        asked = tokens == self.arrow
        right = self.table[jnp.roll(tokens, 1)]
        before = [jnp.cumsum(part) > part.astype(int) for part in (asked, asked & (prompt.tokens[1:] == right))]
        confidence = 6 * jnp.where(before[1], 1.0, jnp.where(before[0], 1.0 - self.strict, 0.0))
        logits = jnp.zeros((len(tokens), len(self.table)))
        return logits.at[jnp.arange(len(tokens)), right].add(jnp.where(asked & (right >= 0), confidence, 0.0))


WORDS = sorted({word for pairs in (pair_tables.ANTONYMS, pair_tables.KINDS) for pair in pairs for word in pair})
WORDS += ["foo", "bar", "zip", "log", "mix", "tab"]
TOKENIZER = CharacterTokenizer(*WORDS, *(f" {word}" for word in WORDS), " ->")
SENTENCES = tasks.Text.from_documents(Documents(("a",), (b"hot -> cold\n" * 60,)), tokens=24, tokenizer=TOKENIZER)


def reader(strict):
    table = np.full(TOKENIZER.get_vocab_size(), -1)
    for item, answer_of in pair_tables.ANTONYMS:
        table[TOKENIZER.tokens.index(item)] = TOKENIZER.tokens.index(f" {answer_of}")
    return Reader(jnp.asarray(table), TOKENIZER.tokens.index(" ->"), strict)


def with_idle_heads(model, count=2):
    """Heads that attend evenly and add nothing, in every block."""

    def wider(attention, axis):
        width = [(0, 0)] * 3
        width[axis] = (0, count)
        return jnp.pad(attention, width)

    parts = {"query": 1, "key": 1, "value": 1, "output": 0}
    for name, axis in parts.items():
        old = [getattr(block.attention, name) for block in model.blocks]
        new = [wider(array, axis) for array in old]
        model = eqx.tree_at(lambda m, n=name: [getattr(b.attention, n) for b in m.blocks], model, new)
    return model


def asked(section, network, task=TEXT, *, size=SMALL, **facts):
    answered = answer(Subject.of(network, task, **facts), SECTIONS[section], size, jax.random.key(0), PACE)
    assert answered.status == "answered", answered.reason
    return answered


def test_a_text_makes_a_language_model_and_its_sections_are_those_of_language_models():
    subject = Subject.of(HEAD, TEXT)
    assert subject.kind == "language model"
    applying = [name for name, section in SECTIONS.items() if not section.unasked(subject)]
    assert applying == ["contract", "text", "repeats"]  # no heads to compare with, no tokenizer
    assert "kinds regression" in SECTIONS["in_context"].unasked(subject)
    assert "tokenizer" in SECTIONS["few_shot"].unasked(subject)


@pytest.mark.slow
def test_the_contract_of_a_language_model_is_sound():
    assert asked("contract", Mixed(HEAD, 0.01)).finding.verdict == "sound"


def test_a_language_model_that_sees_the_next_token_is_not_causal():
    class Sees(AbstractPredictor):
        def __call__(self, prompt):
            seen = jnp.arange(prompt.positions) == 7
            return jax.nn.one_hot(jnp.where(seen, prompt.tokens[1:], 0), TEXT.vocabulary)

    found = asked("contract", Sees()).finding
    assert (found.verdict, "position" in found.sentence) == ("not causal", True)
    assert "7" in found.sentence


def test_the_gain_of_a_repetition_falls_with_the_share_of_equal_chances():
    found = [asked("repeats", Mixed(HEAD, share)).finding for share in (0.01, 0.5, 1.0)]
    numbers = [finding.number for finding in found]
    assert all(np.diff(numbers) < 0)
    assert numbers[0] > 0.5
    assert abs(numbers[-1]) < 1e-6
    assert [finding.verdict for finding in found] == ["repeats", "repeats", "does not repeat"]


def test_repeated_blocks_fit_into_a_window_after_its_first_token():
    task = repeats.repeated(Subject.of(HEAD, TEXT))
    assert (task.task.period, task.first, task.tokens) == (12, None, 24)
    begun = eqx.tree_at(lambda t: t.windows, TEXT, TEXT.windows)
    object.__setattr__(begun, "beginning", (3,))
    task = repeats.repeated(Subject("mine", HEAD, begun))
    assert (task.task.period, task.first, task.tokens) == (11, 3, 23)


def test_a_periodic_text_is_predicted_from_its_own_context_alone():
    found = [asked("text", Mixed(HEAD, share)).finding for share in (0.01, 0.5, 1.0)]
    assert [finding.verdict for finding in found] == [
        "uses its context",
        "uses its context",
        "does not use its context",
    ]
    assert found[0].number > found[1].number > abs(found[2].number)


def test_another_window_that_shows_the_predicted_tokens_is_passed_over():
    rows = np.arange(60).reshape(4, 15).astype(np.int32)
    rows[1, :8] = rows[0, 7:]  # the next window has the tokens that window 0 predicts in its context
    partners = text._partners(rows, slice(0, 8))
    assert partners.tolist() == [2, 2, 3, 0]


def test_a_short_text_is_a_warning():
    subject = Subject.of(HEAD, TEXT)
    assert text._warnings(subject, SMALL) == []
    assert "windows overlap" in text._warnings(subject, Size("", 2**16, 1, 1, 1))[0]


@pytest.mark.slow
def test_heads_that_are_not_read_have_nothing_to_carry():
    blank = constructions.induction_head(TEXT.vocabulary, tokens=24, read=0.0)
    assert asked("induction_heads", with_idle_heads(blank)).finding.verdict == "nothing to carry"


def test_the_heads_of_an_induction_head_carry_the_repetition():
    found = asked("induction_heads", with_idle_heads(HEAD))
    assert found.finding.verdict == "carried by induction heads"
    assert found.dataset["named"].values.tolist() == [0, 0, 0, 1, 0, 0]
    assert abs(float(found.dataset["rise_of_others"])) < 1e-5
    assert float(found.dataset["rest"]) > 1  # the previous-token head is not named


@pytest.mark.parametrize(
    ("strict", "verdict"), [pytest.param(0.0, "recognition", marks=pytest.mark.slow), (1.0, "learning")]
)
def test_few_shot_examples_are_recognised_or_learned(strict, verdict):
    answered = asked("few_shot", reader(strict), SENTENCES, tokenizer=TOKENIZER)
    assert answered.finding.verdict == verdict
    dataset, size = answered.dataset, TOKENIZER.get_vocab_size()
    benefit = 6 - np.log((size - 1 + np.exp(6)) / size)
    assert np.isclose(float(dataset["benefit"]), benefit, atol=1e-3)
    assert np.isclose(float(dataset["learned"]), strict * benefit, atol=1e-3)
    assert float(dataset["choice"]) == 0.5  # symbols that a table lacks


def test_few_shot_examples_bring_nothing_to_equal_chances():
    assert asked("few_shot", Mixed(reader(0.0), 1.0), SENTENCES, tokenizer=TOKENIZER).finding.verdict == "no benefit"


def scalars(numbers, error, **attrs):
    return xr.Dataset(numbers | {f"{name}_error": error for name in numbers}, attrs=attrs)


@pytest.mark.parametrize(("beyond", "error", "index"), [(1.0, 0.1, 0), (-1.0, 0.1, 1), (0.1, 0.1, 2), (-0.1, 0.1, 2)])
def test_judges_say_yes_no_and_undecided(beyond, error, index):
    position, head = {"position": np.arange(8)}, {"attention_head": ["block0.0", "block0.1"]}
    of_text = scalars(
        dict.fromkeys(("late_loss", "first_loss", "unigram", "other", "shuffled", "benefit"), 3.0) | {"beyond": beyond},
        error, late=1,
    ).assign_coords(position)  # fmt: skip
    verdicts = ["uses its context", "does not use its context", "undecided"]
    assert text.judge(of_text).verdict == verdicts[index]
    of_repeats = scalars({"other": 9.0, "gain": 3.0, "own": 6.0, "influence": 0.0, "beyond": beyond}, error, period=32)
    assert repeats.judge(of_repeats).verdict == ["repeats", "does not repeat", "undecided"][index]
    names = ("gain", "rise", "rise_of_others", "difference", "rest", "all_heads")
    of_heads = scalars(dict.fromkeys(names, 3.0) | {"beyond": beyond}, error).assign_coords(head)
    scores = {name: ("attention_head", [0.9, 0.1]) for name in induction_heads._SCORES.values()}
    of_heads = of_heads.assign(scores).assign(order=("choice", [0]))
    verdicts = ["carried by induction heads", "not carried by induction heads", "undecided"]
    assert induction_heads.judge(of_heads).verdict == verdicts[index]
    assert induction_heads.judge(of_heads.assign(gain=0.2 * error)).verdict == "nothing to carry"
    numbers = {"benefit": 9.0, "recognised": 3.0, "learned": 3.0, "choice": 0.5, "beyond_none": 5.0}
    surprise = {"surprise": (("shown", "shots"), [[9.0, 1.0]])}
    of_shots = scalars(numbers | {"beyond_half": beyond}, error).assign(surprise)
    of_shots = of_shots.assign_coords(shown=["right"], shots=[0, 8])
    assert few_shot.judge(of_shots).verdict == ["learning", "recognition", "undecided"][index]
    none = of_shots.assign(beyond_none=beyond)
    assert few_shot.judge(none).verdict == [few_shot.judge(of_shots).verdict, "no benefit", "undecided"][index]


@pytest.mark.parametrize(
    ("gap", "other", "error", "converged", "verdict"),
    [
        (0.01, 0.9, 0.001, 1, "carried by weights"),
        (0.05, 0.06, 0.001, 1, "capacity"),
        (0.6, 0.9, 0.01, 1, "no map"),
        (0.1, 0.9, 0.05, 1, "undecided"),
        (0.01, 0.9, 0.001, 0, "undecided"),
    ],
)
def test_the_judge_of_context_as_weights(gap, other, error, converged, verdict):
    axes = ("null", "draw")
    values = {"gap": gap, "gap_error": error, "derivative": 0.5, "converged": converged}
    values |= {"null_gap": (axes, [[other, other]] * 2), "null_gap_error": (axes, [[error, error]] * 2)}
    assert context.judge(xr.Dataset(values, {"null": ["unrelated", "untrained"]})).verdict == verdict


def test_context_as_weights_is_asked_only_by_its_name():
    examination = examine(HEAD, tasks.RepeatedTokens(TEXT.vocabulary, 6), key=jax.random.key(0), only=[], size="small")
    assert examination.sections == ()
    assert "context" not in [name for name in SECTIONS if not SECTIONS[name].on_request]
    assert "only if it is asked for" in html([examination])


def test_six_sentences_of_a_language_model_with_recorded_values_beside():
    found = asked("repeats", Mixed(HEAD, 0.1))
    failed = Answered("few_shot", "failed", "no memory")
    sentences = first_sentences(Examination({"kind": "language model", "name": "mine"}, (found, failed)))
    assert len(sentences) == 6
    assert sentences[1] == found.finding.sentence
    assert "SmolLM2-135M 0.7" in sentences[4]
    assert "failed: no memory" in sentences[-1]


def test_recorded_values_have_the_negative_beside_the_positive():
    values = references()
    assert values["repeats"]["SmolLM2-135M"][0] > 0.5 > abs(values["repeats"]["glassllm"][0]) * 10
    for section, models in values.items():
        assert SECTIONS[section].kinds == ("language model",)
        assert all(np.isfinite(number).all() for number in models.values())


def test_a_text_is_in_the_tokens_of_a_network_that_has_a_tokenizer(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("hot -> cold\n" * 60)

    class Named(AbstractPredictor):
        tokenizer = TOKENIZER

        def __call__(self, prompt: TokenPrompt):
            return jnp.zeros((prompt.positions, TOKENIZER.get_vocab_size()))

    task, tokenizer = task_and_tokenizer(f"text {path} tokens=16", Named(), "the network")
    assert tokenizer is TOKENIZER
    assert (task.tokens, task.vocabulary) == (16, TOKENIZER.get_vocab_size())
    task, tokenizer = task_and_tokenizer(f"text {path}", HEAD, "the network")
    assert (task.tokens, task.vocabulary, tokenizer) == (128, 256, None)
