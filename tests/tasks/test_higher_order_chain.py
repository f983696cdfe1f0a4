"""Chains of several orders: their least losses by enumeration, and what is drawn from them."""

import inspect
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.tasks import HigherOrderChain, MarkovChain

SIZES = {"vocabulary": 3, "order": 2, "tokens": 5}


def chain_of(vocabulary, order, tokens):
    rows = np.random.default_rng(vocabulary).dirichlet(np.full(vocabulary, 0.5), vocabulary**order)
    return HigherOrderChain(rows, order=order, tokens=tokens)


def windows(chain, tokens):
    """All windows and their probabilities under the stationary distribution, in float64."""
    with jax.enable_x64(True):
        table, start = (np.array(x, np.float64) for x in (chain.transition, chain.start))
        table, start = table / table.sum(1, keepdims=True), start / start.sum()
    v, k = chain.vocabulary, chain.order
    for window in itertools.product(range(v), repeat=tokens):
        numbers = [sum(x * v ** (k - 1 - j) for j, x in enumerate(window[i : i + k])) for i in range(tokens - k + 1)]
        p = start[numbers[0]]
        for number, x in zip(numbers, window[k:], strict=False):
            p *= table[number, x]
        yield window, p


def test_least_losses_are_entropies_of_blocks():
    """h_j = H(block of j + 1) - H(block of j), by enumeration; constant from the order on."""
    with jax.enable_x64(True):
        chain = chain_of(**SIZES)
        law = list(windows(chain, 5))
        blocks = [0.0]
        for j in range(1, 6):
            p = {}
            for window, weight in law:
                p[window[:j]] = p.get(window[:j], 0.0) + weight
            values = np.array([x for x in p.values() if x > 0])
            blocks.append(-np.sum(values * np.log(values)))
        np.testing.assert_allclose(chain.least_losses(), np.diff(blocks)[:3], rtol=1e-10)
        np.testing.assert_allclose(chain.entropies(), np.diff(blocks)[1:], rtol=1e-10)
        # Stationary: the distribution of the last tokens of a window is that of its first.
        last = {}
        for window, weight in law:
            last[window[-2:]] = last.get(window[-2:], 0.0) + weight
        np.testing.assert_allclose([last[c] for c in itertools.product(range(3), repeat=2)], chain.start, atol=1e-12)


def test_order_one_is_the_markov_chain():
    with jax.enable_x64(True):
        chain = chain_of(4, 1, 6)
        plain = MarkovChain(chain.transition, 6)
        np.testing.assert_allclose(chain.start, plain.stationary(), rtol=1e-10)
        np.testing.assert_allclose(chain.entropies(), plain.entropies(), rtol=1e-12)
        np.testing.assert_allclose(chain.conditionals()[0][0], plain.stationary(), rtol=1e-10)


def test_windows_come_as_often_as_they_should(getkey):
    chain = chain_of(2, 2, 4)
    drawn = np.asarray(jax.jit(lambda key: chain.sample_many(4000, key=key))(getkey()).tokens)
    counts = np.bincount(drawn @ [8, 4, 2, 1], minlength=16) / 4000
    p = np.array([weight for _, weight in windows(chain, 4)])
    assert np.all(np.abs(counts - p) < 4.5 * np.sqrt(p * (1 - p) / 4000) + 1e-9)


def test_transitions_that_are_no_table_are_refused():
    """As a user without a type checker asks."""
    for shape in ((), (8,), (2, 2, 2)):
        with pytest.raises(InputError) as error:
            inspect.unwrap(HigherOrderChain.__init__)(SimpleNamespace(), np.full(shape, 0.5), order=2, tokens=4)
        assert f"a row for each of V^2 contexts of V >= 2 tokens, got {list(shape)}" in str(error.value)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: HigherOrderChain(jnp.full((3, 2), 0.5), order=2, tokens=4), "a row for each of V^2 contexts"),
        (lambda: HigherOrderChain(jnp.full((4, 2), 0.4), order=2, tokens=4), "rows of probabilities that sum to 1"),
        (lambda: HigherOrderChain(jnp.full((4, 2), 0.5), order=2, tokens=2), "tokens: expected an integer of at least"),
        (lambda: HigherOrderChain(jnp.eye(2), order=1, tokens=4), "a chain with one stationary distribution"),
        (
            lambda: HigherOrderChain.init(**SIZES, share=0.0, key=jax.random.key(0)),
            "share: expected a number above 0 and at most 1",
        ),
    ],
)
def test_bad_questions(ask, said):
    with pytest.raises(InputError) as error:
        ask()
    assert said in str(error.value)
