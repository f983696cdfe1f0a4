"""What is measured of networks, and the check on made-up peaks."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.routing import _small_transformers
from icllab.claims.routing.peaks_in_networks import claim, measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 4, "layers": 1, "heads": 1, "zipf_exponent": 1.0}
POINT = SimpleNamespace(**SIZES, program=("a", "b", "c"), batch=16, resolution=1e-2, step=(5, 20), seed=(0, 3))


@pytest.fixture(scope="module")
def found():
    with jax.enable_x64(True):
        return [measure.measure(POINT, key=jax.random.key(0), trained=trained) for trained in (True, False)]


def test_responses_are_of_each_program_to_itself_where_the_last_never_comes(found):
    trained, still = found
    (axes, losses), (_, own) = trained["program_loss"], trained["own_response"]
    assert axes == ("seed", "step", "program")
    assert losses.shape == own.shape == (2, 2, 3)
    np.testing.assert_array_equal(still["program_loss"][1][:, 0], still["program_loss"][1][:, 1])
    with jax.enable_x64(True):
        _, family = _small_transformers.sample_family((3,), POINT, key=jax.random.fold_in(jax.random.key(0), 0))
        w, pi, prompts = family.weights[0], jnp.asarray([2 / 3, 1 / 3, 0]), family.prompts[0]
        seen = _small_transformers.seen(family, w[None], prompts, pi, jnp.asarray(1e-2))
    np.testing.assert_allclose(still["own_response"][1][1, 0], -np.diagonal(seen.response[0]), rtol=1e-9)
    assert np.abs(seen.response[0]).min() > 1e-6
    # Two programs that are all the data there is: more of one is less of the other.
    np.testing.assert_allclose(np.asarray(seen.response[0])[:, :2] @ np.array([2.0, 1.0]), 0, atol=1e-9)
    assert (losses[:, 1, :2].mean(1) < losses[:, 0, :2].mean(1)).all()


def test_losses_and_responses_are_of_the_steps_asked_for(monkeypatch):
    """Of a path whose weights are the number of updates, of which every fifth is kept."""
    kept = np.arange(5.0, 21.0, 5.0)
    family = SimpleNamespace(prompts=[0.0, 1.0])

    def seen(family, ways, prompts, pi, resolution):
        np.testing.assert_allclose(pi, [2 / 3, 1 / 3, 0])
        response = ways[:, None, None] * np.arange(9.0).reshape(3, 3)
        return SimpleNamespace(losses=ways[:, None] + prompts * np.ones(3), response=response)

    small = SimpleNamespace(
        sample_family=lambda seeds, point, *, key: (None, family),
        Batches=SimpleNamespace(from_frequencies=lambda *args, **how: None),
        descended=lambda family, batches, *, optimizer, every: np.stack([kept] * 2),
        seen=seen,
    )
    monkeypatch.setattr(measure, "_small_transformers", small)
    found = measure.measure(SimpleNamespace(**vars(POINT) | {"step": (5, 10, 20)}), key=jax.random.key(0))
    steps = np.array([5.0, 10.0, 20.0])
    np.testing.assert_array_equal(found["program_loss"][1][..., 0], [steps, steps + 1])
    np.testing.assert_array_equal(found["own_response"][1][1], -steps[:, None] * np.array([0.0, 4.0, 8.0]))


def made_up(ratio=0.6, left=0.01, absent=1.0, seeds=24, steps=claim.STEPS):
    """Losses that halve at 250, 350 and 450, and responses with peaks at a share of that time."""
    rng, t = np.random.default_rng(0), np.array(steps, float)
    times = np.array([100, 250, 350, 450]) * np.exp(0.1 * rng.normal(size=(seeds, 1)))
    losses = 2 * np.log(6) / (1 + 3**1 * (t[:, None] / times[:, None]) ** 6) / 1.0
    peaks = ratio * times
    shape = np.exp(-(np.log(t[:, None] / peaks[:, None]) ** 2) * 2)
    response = np.maximum(shape, left)
    never = np.broadcast_to(np.log(6) + t / 500, (seeds, len(t)))
    growing = np.where(t < 1900, 0.5, absent)[None] * np.ones((seeds, 1))
    dims = ("layers", "seed", "step", "program")
    rows = {
        "program_loss": (dims, np.concatenate([losses, never[..., None]], axis=2)[None]),
        "own_response": (dims, np.concatenate([response, growing[..., None]], axis=2)[None]),
    }
    coords = {"layers": [1], "seed": range(seeds), "step": list(steps), "program": list(claim.PROGRAMS)}
    attrs = {"configuration": json.dumps({"fixed": claim.claim.fixed})}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(ratio=1.5)) == {"before"}
    assert names(made_up(left=0.5)) == {"falls"}
    assert names(made_up(absent=0.01)) == {"absent"}


def test_single_spikes_are_no_peak():
    values = xr.DataArray(np.array([1.0, 2, 3, 4, 3, 2, 1, 9, 1, 1]), coords={"step": np.arange(10)}, dims="step")
    assert int(claim.smoothed(values).argmax("step")) in (2, 3, 4)
