"""A text is a task with the names of its constructor, or one line says why not."""

import dataclasses
import re

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from icllab import tasks
from icllab.core.errors import InputError
from icllab.core.kernels import gaussian
from icllab.core.prompt import TokenPrompt


def same(one, other):
    """Two tasks are one distribution: equal types, static fields and arrays."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def regression(**changes):
    task = tasks.LinearRegression.convention("raventos", dim=3, length=5)
    return dataclasses.replace(task, **changes)


UNIT = tasks.GaussianWeights(jnp.ones(()))
ITEMS = tasks.ItemLabel.init(classes=8, labels=4, pairs=4, dim=6, burstiness=2, key=jax.random.key(0))
PAIRS = {
    "linear_regression:raventos dim=3 length=5": lambda: regression(),
    "linear_regression:raventos dim=3 length=5 noise_variance=1/10": lambda: regression(noise_variance=0.1),
    "linear_regression dim=3 length=5 noise_variance=0.25": lambda: regression(),
    "linear_regression:raventos dim=3 length=5 inputs.covariance=0.125": lambda: regression(
        inputs=tasks.GaussianInputs(0.125)
    ),
    "linear_regression:raventos dim=3 length=5 inputs.covariance=1,2,0.5": lambda: regression(
        inputs=tasks.GaussianInputs(jnp.array([1.0, 2.0, 0.5]))
    ),
    "linear_regression:raventos dim=3 length=5 pool=64 key=7": lambda: regression(
        weights=tasks.WeightPool.init(UNIT, 64, 3, key=jax.random.key(7))
    ),
    "linear_regression:raventos dim=3 length=5 pool=2 weights.covariance=4": lambda: regression(
        weights=tasks.WeightPool.init(tasks.GaussianWeights(4.0), 2, 3, key=jax.random.key(0))
    ),
    "linear_regression:vonoswald dim=3 length=5 half_width=2 noise_variance=0.25": lambda: regression(
        inputs=tasks.UniformInputs(2.0)
    ),
    "linear_regression dim=3 length=5 noise_variance=0.25 inputs=sphere_inputs inputs.radius=2": lambda: regression(
        inputs=tasks.SphereInputs(2.0)
    ),
    "linear_regression dim=3 length=5 noise_variance=0.25 weights=sparse_weights nonzero=2": lambda: regression(
        weights=tasks.SparseWeights(2)
    ),
    "sign_labels task=linear_regression:garg dim=3 length=5": lambda: tasks.SignLabels(
        tasks.LinearRegression.convention("garg", dim=3, length=5)
    ),
    "item_label:reddy classes=64 key=3": lambda: tasks.ItemLabel.convention("reddy", classes=64, key=jax.random.key(3)),
    "item_label classes=8 labels=4 pairs=4 dim=6 burstiness=2": lambda: ITEMS,
    "item_label classes=8 labels=4 pairs=4 dim=6 burstiness=2 p_novel=1/2 swapped=true": lambda: dataclasses.replace(
        ITEMS, mixture=dataclasses.replace(ITEMS.mixture, p_novel=0.5), swapped=True
    ),
    "markov_chain vocabulary=4 tokens=9 concentration=0.3": lambda: tasks.MarkovChain.init(
        vocabulary=4, tokens=9, concentration=0.3, key=jax.random.key(0)
    ),
    "markov_pool vocabulary=4 tokens=9": lambda: tasks.MarkovPool(4, 9),
    "markov_pool vocabulary=4 tokens=9 pool=5 key=2": lambda: tasks.MarkovPool.init(
        chains=5, vocabulary=4, tokens=9, key=jax.random.key(2)
    ),
    "repeated_tokens vocabulary=8 period=7 distinct=true first=8": lambda: tasks.TokenIds(
        tasks.RepeatedTokens(8, 7, distinct=True), first=8
    ),
    "function_regression dim=2 length=4 kernel=exponential temperature=2 noise_variance=0": lambda: (
        tasks.FunctionRegression(
            2, 4, tasks.GaussianInputs(1.0), kernel="exponential", temperature=2.0, noise_variance=0.0
        )
    ),
    "function_regression dim=2 length=4 kernel=gaussian temperature=2 noise_variance=0.5": lambda: (
        tasks.FunctionRegression(2, 4, tasks.GaussianInputs(1.0), kernel=gaussian, temperature=2.0, noise_variance=0.5)
    ),
}


@pytest.mark.parametrize("text", PAIRS)
def test_a_text_is_the_task_of_the_constructor(text):
    same(tasks.parse(text), PAIRS[text]())


def test_a_task_passes_through():
    assert tasks.parse(ITEMS) is ITEMS
    with pytest.raises(InputError, match="task: expected a task, with methods sample and loss, got 'int'"):
        tasks.parse(3)


def test_files_give_arrays(tmp_path):
    """The very tasks, vectors, chains and ids of a file, also by a path with a space."""
    place = tmp_path / "a folder"
    place.mkdir()
    pool = np.arange(12, dtype=np.float64).reshape(4, 3)
    np.save(place / "tasks.npy", pool)
    task = tasks.parse(f"linear_regression:raventos dim=3 length=5 pool='{place}/tasks.npy'")
    np.testing.assert_array_equal(task.weights.weights, pool)
    assert task.weights.weights.dtype == UNIT.covariance.dtype
    assert task.fresh().weights == UNIT
    means, labels = np.ones((8, 6), np.float32), np.full((4, 6), 2.0, np.float32)
    np.savez(place / "vectors.npz", means=means, labels=labels)
    items = tasks.parse(f"item_label classes=8 labels=4 pairs=4 dim=6 burstiness=2 vectors='{place}/vectors.npz'")
    same(items, dataclasses.replace(ITEMS, means=jnp.asarray(means), label_vectors=jnp.asarray(labels)))
    np.save(place / "ids.npy", [5, 3, 9])
    coded = tasks.parse(f"repeated_tokens vocabulary=3 period=2 first=0 ids='{place}/ids.npy'")
    plain = tasks.RepeatedTokens(3, 2).sample(key=jax.random.key(1)).tokens
    np.testing.assert_array_equal(
        coded.sample(key=jax.random.key(1)).tokens, [0, *(np.array([5, 3, 9])[np.asarray(plain)])]
    )


def test_tables_texts_and_files_of_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b,c\n" + "\n".join(f"{i},{i * i % 7},{i % 3}" for i in range(9)))
    table = tasks.parse("table rows.csv target=c length=4 columns=a")
    assert (table.columns, table.target, table.length) == (("a",), "c", 4)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("to be or not to be")
    assert tasks.parse("text texts/ tokens=4").vocabulary == 256
    assert tasks.parse("text texts/a.txt tokens=4 alphabet=tobe").vocabulary == 5
    (tmp_path / "mine.py").write_text(
        "from icllab import tasks\n"
        "ready = tasks.RepeatedTokens(8, 3)\n"
        "def build(period=3):\n    return tasks.RepeatedTokens(8, period)\n"
        "class Mine(tasks.RepeatedTokens):\n    pass\n"
        "def broken():\n    return 1 / 0\n"
        "def number():\n    return 3\n"
    )
    for text, period in (
        ("ready", 3),
        ("ready period=4", 4),
        ("build", 3),
        ("build period=5", 5),
        ("build repeats=3", 3),
    ):
        assert tasks.parse(f"mine.py:{text}").period == period
    assert type(tasks.parse("mine.py:Mine vocabulary=4 period=2")).__name__ == "Mine"
    for text, message in {
        "mine.py:broken": "mine.py, line 8: expected the task of mine.py:broken, got ZeroDivisionError",
        "mine.py:number": "task: expected a task, with methods sample and loss, got 'int'",
        "mine.py:raedy": "unknown name in mine.py: 'raedy'; did you mean 'ready'?",
        "nothing.py:ready": "expected a Python file that exists",
    }.items():
        with pytest.raises(InputError) as caught:
            tasks.parse(text)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown task ''; 18 are known (or file.py:name)"),
        ("linear_regresion dim=8", "unknown task 'linear_regresion'; did you mean 'linear_regression'?"),
        ("gaussian_inputs covariance=2", "unknown task 'gaussian_inputs'"),
        (
            "linear_regression:reventos dim=8",
            "unknown convention of linear_regression: 'reventos'; did you mean 'raven",
        ),
        ("markov_chain:x tokens=3", "unknown convention of markov_chain: 'x'; known: none"),
        (
            "linear_regression dim=8",
            "linear_regression: expected a value of length, noise_variance, got none; its fields",
        ),
        (
            "linear_regression:raventos dim=8 length=16 covariance=2",
            "covariance: expected one of inputs.covariance, weights.covariance, got '2'",
        ),
        (
            "linear_regression:raventos dim=8 length=16 nose_variance=0.1",
            "unknown field of linear_regression:raventos: 'nose_variance'; did you mean 'noise_variance'?",
        ),
        ("linear_regression dim=0 length=3 noise_variance=0", "dim: expected an integer of at least 1, got 0"),
        ("linear_regression dim=8 dim=3", "task: expected NAME and field=value ..., each field once"),
        ("linear_regression dim 8", "task: expected NAME and field=value ..., each field once"),
        ("linear_regression:raventos dim=3 length=5 inputs.covariance=x", "covariance: expected real numbers, got 'x'"),
        ("linear_regression:raventos dim=3 length=5 pool=no.npy", "pool: expected an .npy or .npz file of numbers"),
        ("linear_regression:raventos dim=3 length=5 pool=4 key=x", "key: expected an integer from 0 on"),
        ("linear_regression:raventos dim=3 length=5 key=4", "unknown field of linear_regression:raventos: 'key'"),
        ("linear_regression:raventos dim=3 length=5 first=3", "task: expected a task of tokens such as RepeatedTokens"),
        ("linear_regression dim=3 length=5 noise_variance=0 inputs=gausian_inputs", "did you mean 'gaussian_inputs'?"),
        ("repeated_tokens vocabulary=4 period=5 distinct=true", "period: expected at most 4, the different tokens"),
        ("repeated_tokens vocabulary=4 period=5 pool=3", "unknown field of repeated_tokens: 'pool'"),
        ("'abc", 'task: expected a task in "\'abc", got ValueError: No closing quotation'),
    ],
)
def test_an_error_is_one_line_with_the_nearest_name(text, message):
    with pytest.raises(InputError) as caught:
        tasks.parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vectors_of_other_sizes_are_refused(tmp_path):
    np.savez(tmp_path / "v.npz", means=np.ones((8, 5)), label_vectors=np.ones((4, 5)))
    text = f"item_label classes=8 labels=4 pairs=4 dim=6 vectors={tmp_path}/v.npz"
    with pytest.raises(InputError, match=r"vectors: expected arrays .*\(8, 6\).*, got .*\(8, 5\)"):
        tasks.parse(text)


NAMES = st.sampled_from([*(name.partition("[")[0] for name in tasks.grammar()), "x", ":raventos", "repeated_tokens:"])
FIELDS = st.sampled_from(
    ["dim", "length", "pool", "key", "inputs", "inputs.covariance", "noise_variance", "first", "ids", "vocabulary"]
)
KNOWN = ["1", "2", "1/0", "none", "true", "1,2", "-1", "nan", "x.npy", "gaussian_inputs"]
VALUES = st.one_of(st.sampled_from(KNOWN), st.text(max_size=5))
WORDS = st.lists(st.one_of(st.text(max_size=8), st.builds("{}={}".format, FIELDS, VALUES)), max_size=5)


@hypothesis.given(NAMES, WORDS)
@hypothesis.settings(max_examples=150, deadline=None)
def test_every_text_is_a_task_or_one_line(name, words):
    try:
        answer = tasks.parse(" ".join([name, *words]))
    except InputError as error:
        answer = error
    assert isinstance(answer, eqx.Module) or len(str(answer).splitlines()) == 1


@hypothesis.given(st.text())
@hypothesis.settings(max_examples=200, deadline=None)
def test_random_text_is_refused_in_one_line(text):
    with pytest.raises(InputError) as caught:
        tasks.parse(text)
    assert len(str(caught.value).splitlines()) == 1


def test_the_listing_has_each_task_with_its_defaults():
    listing = tasks.grammar()
    assert listing["repeated_tokens"] == "vocabulary= period= repeats=2 distinct=false"
    start = "linear_regression[:raventos|garg|vonoswald|ahn|timaeus]"
    assert listing[start].startswith("dim= length= inputs=gaussian_inputs")
    assert listing["markov_chain"].endswith("concentration=1 key=0")


def test_distinct_tokens_are_a_permutation_and_the_default_draws_as_before(getkey):
    task = tasks.RepeatedTokens(vocabulary=5, period=4, repeats=3, distinct=True)
    tokens = np.asarray(task.sample_many(2000, key=getkey()).tokens)
    np.testing.assert_array_equal(tokens[:, 4:], tokens[:, :-4])
    assert all(len(set(row)) == 4 for row in tokens[:, :4].tolist())
    counts = np.bincount(tokens[:, :4].ravel(), minlength=5)
    assert abs(counts - 1600).max() < 4 * (1600 * 0.2) ** 0.5
    np.testing.assert_allclose(task.entropies(), [np.log(4), np.log(3), np.log(2), *[0] * 8])
    key = getkey()
    drawn = tasks.RepeatedTokens(5, 4).sample(key=key).tokens
    np.testing.assert_array_equal(drawn, jnp.tile(jax.random.randint(key, (4,), 0, 5), 2))


def test_ids_before_the_logits_of_a_network(getkey):
    """The first token is no target; a network may have more logits than the given ids."""
    inner = tasks.RepeatedTokens(3, 2)
    task = tasks.TokenIds(inner, jnp.array([5, 3, 9]), first=11)
    assert (task.class_count, task.vocabulary, task.tokens, task.length) == (10, 12, 5, 3)
    prompt = task.sample(key=getkey())
    assert (prompt.tokens[0], prompt.positions, prompt.mask) == (11, 4, None)
    for logits in (10, 40):
        sharp = 50 * jax.nn.one_hot(prompt.tokens[1:], logits)
        np.testing.assert_allclose(task.loss(sharp, prompt), 0, atol=1e-4)
        np.testing.assert_allclose(task.loss(0 * sharp, prompt), np.log(logits), rtol=1e-6)
        np.testing.assert_array_equal(task.accuracy(sharp, prompt), 1)
        np.testing.assert_allclose(task.loss(sharp[-1:], prompt), 0, atol=1e-4)
    with pytest.raises(InputError, match="expected"):
        task.loss(jnp.zeros((4, 9)), prompt)
    assert eqx.filter_jit(lambda task, key: task.loss(sharp, task.sample(key=key)))(task, getkey()).shape == (4,)
    # BOS is no target: 8 tokens and BOS = 8 need eight logits.
    assert tasks.TokenIds(tasks.RepeatedTokens(8, 7), first=8).class_count == 8
    plain = tasks.TokenIds(tasks.RepeatedTokens(8, 7), first=8)
    with pytest.raises(InputError, match=r"expected logits of at most 9 tokens, got 17; .* ids= says"):
        plain.loss(jnp.zeros((14, 17)), plain.sample(key=getkey()))
    task.require_prompts(task.sample_many(3, key=getkey()))
    with pytest.raises(InputError, match="an id from 0 to 11"):
        task.require_prompts(jax.vmap(TokenPrompt)(jnp.full((2, 5), 12)))
    for ids, first, message in (
        ([1, 2], None, "ids: expected a different id >= 0 for each of 3 tokens"),
        ([1, 1, 2], None, "ids: expected a different id"),
        ([0.5, 1.0, 2.0], None, "ids: expected one integer for each token, got 'float32 of shape (3,)'"),
        ([1, 2, 3], -1, "first: expected an integer of at least 0"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            tasks.TokenIds(inner, jnp.array(ids), first)
