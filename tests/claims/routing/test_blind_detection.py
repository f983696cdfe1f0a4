"""What detectors see of two layers in closed form, scores and alarms of made-up series, and the check."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.routing import _detection
from icllab.claims.routing.blind_detection import claim
from icllab.claims.routing.blind_detection.measure import frequencies, measure, monitored
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(**claim.FIXED | {"contexts": 3, "tilts": 2}, step=(1, 2))


def test_frequencies_are_a_power_law_and_one_that_begins():
    np.testing.assert_allclose(frequencies(4, "never", True, 0.2), [6 / 11, 3 / 11, 2 / 11, 0])
    np.testing.assert_allclose(frequencies(4, "planted", False, 0.2)[-1], 0)
    for kind, begun in (("planted", True), ("start", False)):
        found = frequencies(4, kind, begun, 0.2)
        np.testing.assert_allclose(found, [0.8 * 6 / 11, 0.8 * 3 / 11, 0.8 * 2 / 11, 0.2])


def test_what_is_monitored_is_what_is_written_out():
    """The loss; the positive part of the Hessian's trace at a resolution; and responses with the matrix J'J/C."""
    rng, draws = np.random.default_rng(0), np.random.default_rng(1)
    targets, a, b = (rng.normal(size=(3, 3)) for _ in range(3))
    weights = {"a": np.stack([a, a]), "b": np.stack([b, 0 * b])}
    with jax.enable_x64(True):
        found = monitored(POINT, weights, targets, np.random.default_rng(1))

        def loss(flat, rows):
            answers = flat[:9].reshape(3, 3) @ flat[9:].reshape(3, 3)
            return jnp.sum(rows * jnp.sum((answers - targets) ** 2, axis=1)) / 2

        flat, even = jnp.asarray(np.concatenate([a.ravel(), b.ravel()])), jnp.full(3, 1 / 3)
        hessian = np.asarray(jax.hessian(loss)(flat, even))
        jacobian = np.asarray(jax.jacobian(lambda w: (w[:9].reshape(3, 3) @ w[9:].reshape(3, 3)).ravel())(flat))
        spread = np.linalg.inv(POINT.nbeta * (jacobian.T @ jacobian / 3 + POINT.resolution * np.eye(18)))
        responses = []
        for row in draws.dirichlet(np.ones(3), size=2):
            change = jnp.asarray(row) - even
            slopes = [np.asarray(jax.grad(loss)(flat, rows)) for rows in (even, change)]
            bend = np.asarray(jax.hessian(loss)(flat, change))
            covariance = slopes[0] @ spread @ slopes[1] + np.trace(hessian @ spread @ bend @ spread) / 2
            responses.append(-POINT.nbeta * covariance)
        values = np.linalg.eigvalsh(hessian).clip(0)
        wanted = (
            float(loss(flat, even)),
            np.sum(values / (values + POINT.resolution)),
            np.mean(np.square(responses)) ** 0.5,
        )
    np.testing.assert_allclose(found[0], wanted, rtol=1e-8)
    np.testing.assert_allclose(found[1, 0], np.sum(targets**2) / 6)


def test_data_that_never_begin_leave_the_loss_of_their_context():
    """Of a context that is never asked; once it is asked from the start, nothing is left but noise."""
    point = SimpleNamespace(**claim.FIXED | {"tilts": 1}, step=(500, 1500), seed=(1,))
    with jax.enable_x64(True):
        silent, never, start = (
            measure(SimpleNamespace(**vars(point), kind=kind), key=jax.random.key(0), silent=kind == "planted")
            for kind in ("planted", "never", "start")
        )
    of_silent, of_never, of_start = (found["monitored"][1][0, :, 0] for found in (silent, never, start))
    np.testing.assert_array_equal(of_silent, of_never)
    np.testing.assert_allclose(of_never, 1 / 8, rtol=0.05)
    assert of_start[1] < 0.01


def test_scores_count_standard_deviations_of_the_records_before():
    logs = np.array([0.0, 1.0] * 5)
    logs[9] = 3.0
    found = _detection.scores(np.exp(logs))
    assert (found[:8] == 0).all()
    spread = np.std([0, 1] * 4, ddof=1)
    np.testing.assert_allclose(found[8], 0.5 / spread)
    np.testing.assert_allclose(found[9], 2.5 / spread)
    np.testing.assert_allclose(_detection.scores(np.exp(np.append(np.zeros(8), 0.01)))[8], 0.01 / _detection.FLOOR)


def made_up(delays=(300.0, None, 100.0), jumps=0.5, seeds=64, wrong=0.0, smooth=0.0):
    """Noise of one per cent, less of smooth falls, and a jump of every detector so long after the onset, or none."""
    rng, steps = np.random.default_rng(0), np.arange(50.0, 3001, 50)
    shape = (len(claim.KINDS), seeds, len(steps), 3)
    logs, onset = 0.01 * rng.normal(size=shape), rng.uniform(900, 1800, (len(claim.KINDS), seeds))
    for i, delay in enumerate(delays):
        if delay is not None:
            logs[0, :, :, i] += jumps * (steps >= onset[0, :, None] + delay + rng.uniform(0, 50, (seeds, 1)))
    logs[3] /= 100  # no more than the least deviation that is believed
    for kind, share in ((1, wrong), (2, wrong), (3, smooth)):
        some = np.arange(seeds) % 2 == 1  # of those that set no threshold
        some[int(share * seeds) :] = False
        logs[kind, some] += 2.0 * (steps >= 1500)[:, None]
    dims = ("kind", "seed", "step", "detector")
    rows = {"monitored": (dims, np.exp(logs)), "onset": (dims[:2], onset)}
    coords = {
        "kind": list(claim.KINDS),
        "seed": np.arange(seeds),
        "step": steps,
        "detector": list(_detection.DETECTORS),
    }
    return xr.Dataset(rows, coords=coords)


_, failing, outcome = judged(claim.check)


def names(dataset, **how):
    return {name.split("[")[0] for name in failing(claim.theory(dataset, **how))}


def test_delays_are_those_that_were_made():
    found = claim.theory(made_up())["detection_delay"]
    for detector, least in (("loss", 300), ("response", 100)):
        late = found.sel(detector=detector).values
        assert np.isfinite(late).mean() > 0.9
        assert (np.nanmin(late) >= least, np.nanmax(late) <= least + 100) == (True, True)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(claim.theory(made_up())) is Outcome.HOLDS
    assert names(made_up(delays=(100.0, None, 300.0))) == {"sooner"}
    assert names(made_up(delays=(300.0, 300.0, 100.0))) == {"beats_not"}
    assert "beats" in names(made_up(wrong=1.0))
    assert names(made_up(smooth=1.0)) == {"falls"}
    assert {"stands_out", "beats"} <= names(made_up(delays=(None, None, None)))


def test_an_alarm_at_every_record_is_no_hit():
    assert "beats" in names(made_up(), calibrated=False)


def test_rates_need_runs():
    few = claim.theory(made_up(seeds=12))
    assert outcome(few) is Outcome.UNDECIDED
    assert {finding.id.split("[")[0] for finding in claim.check(few)} == {"stands_out", "rates"}


def test_shares_of_all_and_none_have_an_error():
    for value, wanted in ((1.0, 11 / 12), (0.0, 1 / 12)):
        found = _detection.share(xr.DataArray(np.full(10, value), dims="judged"), "judged")
        np.testing.assert_allclose(float(found.value), wanted)
        np.testing.assert_allclose(float(found.error), (wanted * (1 - wanted) / 13) ** 0.5)


@pytest.mark.parametrize("kind", ["loss", "dimension"])
def test_nothing_but_a_loss_is_seen_of_smooth_falls(kind):
    point = SimpleNamespace(**claim.FIXED, step=claim.COMMON["step"], seed=(0, 1), kind="falls")
    found = measure(point, key=jax.random.key(0))["monitored"][1][..., _detection.DETECTORS.index(kind)]
    assert np.isfinite(found).all() == (kind == "loss")
    if kind == "loss":
        smooth = found[:, ::12]
        assert (np.diff(smooth, axis=1) < 0.05 * smooth[:, :-1]).all()
