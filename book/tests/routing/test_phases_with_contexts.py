"""The machine of two contexts written out, and the check on integrals with a scatter."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing.phases_with_contexts import claim, measure
from icllab.lab.checks import Outcome

FIXED = {"barrier": 3.0, "sign": 0.5, "effect": 0.3, "products": 6}
N = (16, 45, 64, 256, 1024, 2048)
SHARES = (0.2, 0.5)
SEEDS = 10


@pytest.fixture(scope="module")
def exact():
    """Samples that are the integrals with a scatter of two hundredths of a nat."""
    dims = ("context_model", "seed", "share", "phase", "samples")
    shape = (2, SEEDS, 2, 5, len(N))
    dataset = xr.Dataset(
        {
            "phase_free_energy": (dims, np.zeros(shape)),
            "loss_moment": (("moment", *dims), np.zeros((5, *shape))),
            "annealing_warnings": (dims[:-1], np.zeros(shape[:-1])),
        },
        coords={
            "context_model": list(claim.MODELS),
            "seed": range(SEEDS),
            "share": list(SHARES),
            "phase": list(claim.SIDES),
            "samples": list(N),
            "moment": sorted(claim.MOMENTS),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    dataset = claim.theory(dataset)
    noise = np.random.default_rng(0).normal(0, 0.02, shape)
    energies = dataset["phase_free_energy"] + dataset["phase_free_energy_theory"] + noise
    moments = dataset["loss_moment"] + dataset["loss_moment_theory"]
    return dataset.assign(phase_free_energy=energies.transpose(*dims), loss_moment=moments.transpose("moment", *dims))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_for_the_integrals(exact):
    assert outcome(exact) is Outcome.HOLDS


def test_each_part_is_told(exact):
    of_one = exact["phase"] == "10"
    off = exact.assign(phase_free_energy=exact["phase_free_energy"] + 0.3 * of_one)
    assert {"energy", "crossing"} <= names(off)
    grown = exact.assign(expansion=exact["expansion"] + 0.5 * np.log(exact["samples"]) * of_one)
    assert names(grown) == {"remainder"}
    swapped = exact.assign_coords(context_model=list(claim.MODELS)[::-1])
    assert {"path", "superposed", "sooner"} <= names(swapped)
    alone = exact["loss_moment"].copy()
    first, second = (alone.sel(moment=name) for name in ("first", "second"))
    alone.loc[{"moment": "product"}] = first * second
    # Losses that are independent in every phase are still together where the phases are.
    assert "correlation" in names(exact.assign(loss_moment=alone))


def test_losses_of_one_phase_are_not_together(exact):
    """All of the posterior in one phase, at every n."""
    others = exact["phase"] != "00"
    one = exact.assign(phase_free_energy=exact["phase_free_energy"] + 1e3 * others)
    assert {"path", "together"} <= names(one)


def test_a_world_where_all_weights_count_is_told(exact):
    assert names(claim.theory(exact, half=True)) == {"remainder"}


def test_a_mixture_is_that_of_draws():
    """Two phases of two losses, by drawing the phase first."""
    rng = np.random.default_rng(1)
    means, spreads, energies = np.array([[1.0, 2.0], [4.0, 3.0]]), np.array([0.5, 1.5]), np.array([0.3, 1.0])
    weights = np.exp(-energies) / np.exp(-energies).sum()
    which = rng.random(400_000) < weights[1]
    common = rng.normal(size=400_000) * spreads[which.astype(int)]
    losses = means[which.astype(int)].T + common
    moments = np.stack([means[:, 0], means[:, 1], *(means.T**2 + spreads**2), means[:, 0] * means[:, 1] + spreads**2])
    table = xr.DataArray(moments, {"moment": list(claim.MOMENTS)}, ("moment", "phase"))
    mixed = claim.mixture(xr.DataArray(energies, dims="phase"), table)
    assert float(mixed["cross_susceptibility"]) == pytest.approx(np.cov(losses)[0, 1], rel=0.02)
    assert float(mixed["loss_correlation"]) == pytest.approx(np.asarray(np.corrcoef(losses))[0, 1], rel=0.02)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_machine_is_that_of_the_theory(blocks):
    """Losses at random weights, in NumPy; the second context has the other sign, and its own products or the same."""
    rng, d, share = np.random.default_rng(blocks), 2, 0.3
    r, *s = rng.normal(size=3).tolist()
    u, v = rng.normal(size=(2, blocks, d))
    w = {"recognition": r * jnp.ones(1), "daughter": jnp.asarray(s), "u": jnp.asarray(u), "v": jnp.asarray(v)}
    rho = lambda x: 3 * x**2 - 2 * x**3  # noqa: E731
    known = []
    for c, sign in enumerate((0.5, -0.5)):
        b = min(c, blocks - 1)
        answer = [3 * r * (1 - r), sign * (rho(r) - 1), 3 * r * s[c] * (1 - s[c]), 0.3 * (rho(r) * rho(s[c]) - 1)]
        known.append(sum(np.square(answer)) / 2 + np.sum((r * s[c] * u[b] * v[b]) ** 2) / 2)
    loss = measure.Misfit(jnp.asarray(share), 3.0, 0.5, 0.3, d)
    np.testing.assert_allclose(loss.losses(w), known, rtol=1e-5)
    np.testing.assert_allclose(loss(w), 0.7 * known[0] + 0.3 * known[1], rtol=1e-5)
    first, second = 0.7 * known[0], 0.3 * known[1]
    np.testing.assert_allclose(loss.observed(w), [first, second, first**2, second**2, first * second], rtol=1e-5)


def test_phases_divide_the_gates():
    rng = np.random.default_rng(0)
    for r, *s in rng.normal(0.5, 1, (50, 3)).tolist():
        w = {"recognition": jnp.full(1, r), "daughter": jnp.asarray(s)}
        inside = [name for name, sides in claim.SIDES.items() if measure.Phase(jnp.asarray(sides, float))(w)]
        assert inside == (["ignored"] if r < 0.5 else ["".join(str(int(x > 0.5)) for x in s)])


def test_models_seeds_shares_and_phases_have_keys_of_their_own(monkeypatch):
    keys, sizes = [], []

    def noted(posterior, *, key, **options):
        loss = posterior.loss
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        sizes.append(
            (sum(leaf.size for leaf in jax.tree.leaves(posterior.at)), round(float(loss.share), 6), loss.effect)
        )
        rows = {"free_energy": ("nbeta", np.zeros(2)), "observed": (("nbeta", "observable"), np.ones((2, 5)))}
        return xr.Dataset(rows, attrs={"warnings": []})

    monkeypatch.setattr(measure, "free_energy", noted)

    point = SimpleNamespace(**FIXED, samples=(8, 64), share=SHARES, phase=("00", "11"), seed=(0, 1))
    point = SimpleNamespace(**vars(point), particles=10, repeats=2, context_model="private")
    found = measure.measure(point, key=jax.random.key(0))
    assert len(set(keys)) == len(keys) == 8
    assert set(sizes) == {(27, 0.2, 0.3), (27, 0.5, 0.3)}
    np.testing.assert_array_equal(found["loss_moment"][1][0, 0, 0], [[8, 64]] * 2 + [[64, 4096]] * 3)
    sizes.clear()
    measure.measure(point, key=jax.random.key(0), split=True, swapped=True, effect=0.0)
    assert set(sizes) == {(16, 0.2, 0.0), (16, 0.5, 0.0)}


def test_a_crossing_is_the_last_at_which_the_second_phase_takes_over():
    n = np.array([8.0, 16, 32, 64, 128, 256])
    gaps = xr.DataArray(
        [[0.0] * 6, [1.0, -1, 1, -1, -2, 2]], {"phase": ["00", "10"], "samples": n}, ("phase", "samples")
    )
    assert np.exp(float(claim.crossing(gaps, "00", "10"))) == pytest.approx(45.3, rel=0.1)
    assert np.exp(float(claim.crossing(gaps, "10", "00"))) == pytest.approx(181, rel=0.15)
    assert np.isnan(claim.crossing(gaps + 5.0 * (gaps.phase == "10"), "00", "10"))
