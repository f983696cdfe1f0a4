"""The landscape's factors against the landscape itself, the formula written out, differences, and flows of weights."""

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from icllab.theory import induction_factors as factors
from icllab.theory import induction_landscape as landscape

KINDS = list(itertools.product(factors.ATTENTION, factors.OBJECTIVES))
SIZES = {"pairs": 4, "labels": 16}


def points(count=50, seed=0):
    return np.random.default_rng(seed).normal(size=(3, count)) * np.array([[2.0], [3.0], [5.0]])


def written_out(beta, alpha, xi, *, pairs, labels, attention, objective):
    """Token by token: attention of the last position, the label vector it reads, and the loss of the logits."""

    def weights(scores):
        even = np.exp(scores) if attention == "softmax" else 1 + scores
        return even / (even.sum() if attention == "softmax" else len(scores))

    y = weights(np.array([beta, *np.zeros(pairs)]))[0]
    scores = np.zeros(2 * pairs + 1)
    scores[1] = alpha * y
    logits = np.zeros(labels)
    logits[:pairs] = xi * weights(scores)[1 : 2 * pairs : 2]
    if objective == "cross-entropy":
        return np.log(np.exp(logits).sum()) - logits[0]
    return ((logits - np.eye(labels)[0]) ** 2).sum() / 2


@pytest.mark.parametrize(("attention", "objective"), KINDS)
@pytest.mark.parametrize(("pairs", "labels"), [(4, 16), (3, 3)])
def test_loss_and_gradient(attention, objective, pairs, labels):
    kind = {"pairs": pairs, "labels": labels, "attention": attention, "objective": objective}
    w = points()
    np.testing.assert_allclose(factors.loss(*w, **kind), [written_out(*one, **kind) for one in w.T], rtol=1e-10)
    slopes = factors.gradient(*w, **kind)
    for i, change in enumerate(1e-5 * np.eye(3)):
        above, below = (factors.loss(*(w + sign * change[:, None]), **kind) for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, i], (above - below) / 2e-5, rtol=1e-5, atol=1e-7)


def test_with_all_exponentials_it_is_the_landscape():
    w = points()
    np.testing.assert_allclose(factors.loss(*w, **SIZES), landscape.loss(*w, **SIZES), rtol=1e-12)
    np.testing.assert_allclose(factors.gradient(*w, **SIZES), landscape.gradient(*w, **SIZES), rtol=1e-9, atol=1e-12)
    ours = factors.flow((0.01,) * 3, time=60.0, levels=(0.9, 0.5, 0.1), **SIZES)
    known = landscape.flow((0.01,) * 3, time=60.0, **SIZES)
    assert list(ours.crossings) == list(known.crossings)
    np.testing.assert_allclose(list(ours.crossings.values()), list(known.crossings.values()), rtol=1e-6)


@pytest.mark.parametrize(("attention", "objective"), KINDS)
def test_at_the_origin_the_readout_alone_has_a_slope(attention, objective):
    kind = {"attention": attention, "objective": objective}
    assert factors.loss(0.0, 0.0, 0.0, **SIZES, **kind) == pytest.approx(
        np.log(16) if objective == "cross-entropy" else 0.5, rel=1e-14
    )
    slope = factors.gradient(0.0, 0.0, 0.0, **SIZES, **kind)
    assert np.all(slope[:2] == 0)
    assert slope[2] == pytest.approx(-(12 / 16 if objective == "cross-entropy" else 1) / 9, rel=1e-12)


@pytest.mark.parametrize("objective", factors.OBJECTIVES)
def test_without_a_match_the_least_loss_is_that_of_guessing(objective):
    xi = np.linspace(0, 400, 40001)
    least = np.min(factors.loss(0.0, 0.0, xi, objective=objective, **SIZES))
    assert least == pytest.approx(factors.guessing_loss(pairs=4, objective=objective), abs=1e-9)


@pytest.mark.parametrize("count", [2, 3])
def test_products_flow_as_their_weights_do(count):
    """Every weight written out, and descended by itself."""
    kind = {"attention": "first order", "objective": "squared error"}
    start, time = np.array([0.02, 0.05, 0.1]), 40.0

    def velocity(_, v):
        v = v.reshape(count, 3)
        slopes = factors.gradient(*v.prod(axis=0), **SIZES, **kind)
        others = [np.delete(v, i, axis=0).prod(axis=0) for i in range(count)]
        return -(np.array(others) * slopes).ravel()

    alike = np.tile(start ** (1 / count), count)
    end = solve_ivp(velocity, (0, time), alike, method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    found = factors.flow(start.tolist(), time=time, factors=count, **SIZES, **kind)
    np.testing.assert_allclose(found.strengths[0], start, rtol=1e-12)
    np.testing.assert_allclose(found.strengths[-1], end.reshape(count, 3).prod(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.loss[-1], factors.loss(*found.strengths[-1], **SIZES, **kind), rtol=1e-12)


def test_times_of_the_flow():
    """Drop over plateau, 0.9 to 0.1, with all exponentials, some, none, and none but products."""

    def ratio(**kind):
        top, foot = factors.flow((0.01,) * 3, time=400.0, levels=(0.9, 0.1), **SIZES, **kind).crossings.values()
        return (foot - top) / top

    first, squared = {"attention": "first order"}, {"objective": "squared error"}
    found = [ratio(), ratio(**first), ratio(**squared), ratio(**first, **squared), ratio(**first, **squared, factors=2)]
    np.testing.assert_allclose(found, [0.164, 0.186, 0.837, 4.147, 0.502], atol=1e-3)


def test_what_does_not_fall_in_the_time_given_has_no_time():
    assert np.isnan(list(factors.flow((0.01,) * 3, time=5.0, **SIZES).crossings.values())).all()


@pytest.mark.parametrize("attention", factors.ATTENTION)
def test_right_share_is_that_of_the_right_label_among_labels(attention):
    beta, alpha = points()[:2]
    share = factors.right_share(beta, alpha, pairs=3, attention=attention)
    for b, a, s in zip(beta, alpha, share, strict=True):
        even = np.exp([b, 0, 0, 0]) if attention == "softmax" else 1 + np.array([b, 0, 0, 0])
        y = (even / (even.sum() if attention == "softmax" else 4))[0]
        labels = np.exp([a * y, 0, 0]) if attention == "softmax" else 1 + np.array([a * y, 0, 0])
        assert s == pytest.approx(labels[0] / labels.sum(), rel=1e-10)
    assert factors.right_share(1.0, 0.0, pairs=3, attention=attention) == pytest.approx(1 / 3)
