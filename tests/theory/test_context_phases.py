"""Phases of two contexts against draws of the prior, other quadratures, and their limits."""

import numpy as np
import pytest
from scipy.integrate import dblquad

from icllab.core.errors import InputError
from icllab.theory import context_phases

FIXED = {"barrier": 2.0, "sign": 0.5, "effect": 0.4, "products": 2}
N = (7.0, 3.0)


@pytest.mark.parametrize("x", [1e-9, 1e-3, 0.7, 40.0])
def test_the_energy_of_a_product_by_another_quadrature(x):
    def density(v, u):
        return np.exp(-(x * u**2 * v**2 + u**2 + v**2) / 2) * 2 / np.pi

    known = -np.log(dblquad(density, 0, 9, 0, 9, epsabs=1e-12)[0])
    assert context_phases.product_energy(x) == pytest.approx(known, abs=1e-9)


def test_the_energy_of_a_product_has_its_limit_and_its_derivatives():
    x = np.array([1e8, 1e12])
    limit = np.log(2 * np.pi * x) / 2 - np.log(np.log(8 * x) - np.euler_gamma)
    np.testing.assert_allclose(context_phases.product_energy(x), limit, atol=1e-8)
    x, h = np.array([1e-8, 1e-3, 0.5, 30.0, 1e5]), 1e-3
    values = [context_phases.product_energy(x * np.exp(step)) for step in (-h, 0, h)]
    _, first, second = context_phases._product(x)
    np.testing.assert_allclose(first, (values[2] - values[0]) / (2 * h), rtol=1e-5)
    np.testing.assert_allclose(second, (values[2] - 2 * values[1] + values[0]) / h**2, rtol=1e-3, atol=1e-8)


def draws(shared, count=1_000_000):
    """Losses times n under the prior, and the phase of every draw; written out for each context."""
    rng = np.random.default_rng(3)
    r, first, second = 0.5 + rng.normal(size=(3, count))
    u, v = rng.normal(size=(2, 2, FIXED["products"], count))
    barrier, sign, effect = (FIXED[name] for name in ("barrier", "sign", "effect"))
    losses = []
    for c, s in enumerate((first, second)):
        block = 0 if shared else c
        target = sign if c == 0 else -sign
        answer = np.stack(
            [
                barrier * r * (1 - r),
                target * (3 * r**2 - 2 * r**3) - target,
                r * barrier * s * (1 - s),
                effect * (3 * r**2 - 2 * r**3) * (3 * s**2 - 2 * s**3) - effect,
                *(r * s * u[block] * v[block]),
            ]
        )
        losses.append(N[c] * (answer**2).sum(axis=0) / 2)
    inside = {
        "ignored": r < 0.5,
        "00": (r > 0.5) & (first < 0.5) & (second < 0.5),
        "10": (r > 0.5) & (first > 0.5) & (second < 0.5),
        "01": (r > 0.5) & (first < 0.5) & (second > 0.5),
        "11": (r > 0.5) & (first > 0.5) & (second > 0.5),
    }
    return np.stack(losses), inside


@pytest.mark.parametrize("shared", [False, True])
def test_every_phase_agrees_with_draws_of_the_prior(shared):
    losses, inside = draws(shared)
    weight = np.exp(-losses.sum(axis=0))
    phases = []
    for name, within in inside.items():
        phase = context_phases.context_phase(name, *N, shared=shared, **FIXED)
        share = weight * within
        error = share.std() / share.mean() / len(share) ** 0.5
        assert error < 0.02
        assert abs(phase.free_energy + np.log(share.mean())) < 4 * error
        part, chance = losses[:, within], weight[within] / weight[within].sum()
        effective = 1 / (chance**2).sum()
        means = part @ chance
        centred = part - means[:, None]
        np.testing.assert_allclose(phase.means, means, atol=4 * (centred**2 @ chance).max() ** 0.5 / effective**0.5)
        np.testing.assert_allclose(phase.variances, centred**2 @ chance, rtol=0.06)
        product = centred[0] * centred[1]
        covariance = product @ chance
        spread = (chance @ (product - covariance) ** 2 / effective) ** 0.5
        assert abs(phase.covariance - covariance) < 4 * spread < 0.03
        phases.append(phase)
    centred = losses - (losses @ weight / weight.sum())[:, None]
    product = centred[0] * centred[1]
    known = product @ weight / weight.sum()
    spread = (weight @ (product - known) ** 2 / weight.sum() / (weight.sum() ** 2 / (weight**2).sum())) ** 0.5
    assert abs(context_phases.cross_susceptibility(phases) - known) < 4 * spread < 0.03


def test_phases_tend_to_their_expansion():
    """The loss, a half for every gate that the data determine, and the products that they do."""
    fixed = {"barrier": 3.0, "sign": 0.5, "effect": 0.3, "products": 3}
    share, rests = 0.3, {}
    for n in (1e4, 1e6):
        sizes = (n * (1 - share), n * share)
        product = [np.log(x) / 2 - np.log(np.log(8 * x) - np.euler_gamma) for x in (*sizes, n)]
        missed = {
            "ignored": 0.09 * n / 2,
            "00": 0.09 * n / 2,
            "10": 0.09 * sizes[1] / 2,
            "01": 0.09 * sizes[0] / 2,
            "11": 0,
        }
        for shared in (False, True):
            both = product[2] if shared else product[0] + product[1]
            learned = {"ignored": 0, "00": 0, "10": product[0], "01": product[1], "11": both}
            for name, loss in missed.items():
                gates = 0.125 * n + np.log(n) / 2 if name == "ignored" else 1.5 * np.log(n)
                energy = context_phases.context_phase(name, *sizes, shared=shared, **fixed).free_energy
                rests.setdefault((shared, name), []).append(energy - loss - gates - 3 * learned[name])
    for low, high in rests.values():
        assert high == pytest.approx(low, abs=0.03)


def test_private_contexts_with_one_gate_each_are_independent_given_the_gate_of_recognition():
    """A covariance is left from r alone, and is the same for every pair of daughters at large n."""
    found = [
        context_phases.context_phase(
            name, 4e4, 1e4, shared=False, barrier=3.0, sign=0.5, effect=0.3, products=6
        ).covariance
        for name in ("00", "11")
    ]
    np.testing.assert_allclose(found, 0.5 * 0.8 * 0.2, rtol=0.01)  # of half a squared normal, shared in proportion


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phase": "2"}, "phase: expected one of ignored"),
        ({"first": 0.0}, "first"),
        ({"second": -1.0}, "second"),
        ({"barrier": 0.0}, "barrier"),
        ({"products": 0}, "products"),
        ({"sign": np.inf}, "sign"),
    ],
)
def test_what_is_no_phase_is_refused(changes, message):
    arguments = {"phase": "00", "first": 1.0, "second": 1.0, "shared": True} | FIXED | changes
    with pytest.raises(InputError, match=message):
        context_phases.context_phase(**arguments)
    with pytest.raises(InputError, match="at least one"):
        context_phases.cross_susceptibility([])
    with pytest.raises(InputError, match="precision"):
        context_phases.product_energy(-1.0)


@pytest.mark.parametrize("phase", ["ignored", "00", "11"])
def test_nodes_are_enough(phase, monkeypatch):
    """Where far values of other weights make a gate of zero narrow too: half as many again change nothing."""
    known = []
    for nodes in (24, 36):
        monkeypatch.setattr(context_phases, "NODES", nodes)
        numbers = {"barrier": 3.0, "sign": 0.5, "effect": 0.3, "products": 6}
        found = context_phases.context_phase(phase, 3277.0, 819.0, shared=True, **numbers)
        known.append([found.free_energy, *found.means, found.covariance])
    np.testing.assert_allclose(*known, atol=2e-3)
