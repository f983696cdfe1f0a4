"""What detectors see of two layers, written out, alarms of made-up passages, and the check."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing import _detection
from iclbook.claims.routing._responses import response_size, solve
from iclbook.claims.routing.blind_detection import claim
from iclbook.claims.routing.blind_detection.measure import drawn, frequencies, measure, monitored
from icllab.diagnostics import LinearResponse, LocalPosterior, susceptibility
from icllab.diagnostics.curvature.products import GaussNewton
from icllab.lab.checks import Outcome

SMALL = claim.FIXED | {"contexts": 3, "updates": 20, "every": 5, "batch": 4, "start_scale": 0.5}
POINT = SimpleNamespace(**SMALL, seed=(0, 1))


def test_frequencies_are_a_power_law_and_one_that_begins():
    for kind, begun in (("never", True), ("0.2", False)):
        np.testing.assert_allclose(frequencies(4, kind, begun, 0.3), [6 / 11, 3 / 11, 2 / 11, 0])
    for kind, begun, last in (("0.2", True, 0.2), ("start", False, 0.3), ("start", True, 0.3)):
        law = (1 - last) * np.array([6, 3, 2]) / 11
        np.testing.assert_allclose(frequencies(4, kind, begun, 0.3), [*law, last])


def test_responses_are_of_the_matrix_written_out():
    rng = np.random.default_rng(0)
    gradients, rows, shares = rng.normal(size=(4, 6)), rng.normal(size=(3, 6)), np.array([0.4, 0.3, 0.2, 0.1])
    with jax.enable_x64(True):
        found = response_size(*map(jnp.asarray, (gradients, shares, rows, 0.1)))
        spread = solve(jnp.asarray(rows), jnp.asarray(0.1), jnp.eye(6))
    inverse = np.linalg.inv(rows.T @ rows + 0.1 * np.eye(6))
    np.testing.assert_allclose(spread, inverse, rtol=1e-9, atol=1e-12)
    mean = shares @ gradients
    chi = np.array([mean @ inverse @ (row - mean) for row in gradients])
    np.testing.assert_allclose(found, np.sqrt(shares @ chi**2), rtol=1e-9)


def test_random_weights_of_examples_have_the_response_over_a_root():
    """Uniform on the simplex of five examples: the mean square over 40,000 draws, within 3 %."""
    rng = np.random.default_rng(1)
    gradients, rows = rng.normal(size=(5, 6)), rng.normal(size=(3, 6))
    inverse = np.linalg.inv(rows.T @ rows + 0.1 * np.eye(6))
    tilts = rng.dirichlet(np.ones(5), 40_000) @ gradients - gradients.mean(0)
    size = np.mean((tilts @ inverse @ gradients.mean(0)) ** 2) ** 0.5
    with jax.enable_x64(True):
        found = float(response_size(*map(jnp.asarray, (gradients, np.full(5, 0.2), rows, 0.1))))
    assert abs(size * 6**0.5 / found - 1) < 0.03


def series(noise=0.1):
    start, contexts, labels = drawn(POINT, "start", 7.0, np.random.default_rng(3), np.full(20, noise))
    with jax.enable_x64(True):
        numbers = jnp.asarray(POINT.rate), jnp.asarray(POINT.resolution)
        rows = monitored(*map(jnp.asarray, (start, contexts, labels)), *numbers, every=5)
    return start, contexts, labels, np.asarray(rows)


def test_what_is_monitored_is_of_the_batches_since_the_last_record():
    """Each batch's loss and gradient before its own step; the response at the record, by the library's route."""
    w, contexts, labels, found = series()
    assert found.shape == (4, 3)
    for record in range(2):
        losses, norms = [], []
        for t in range(5 * record, 5 * record + 5):
            residuals = (w[0] @ w[1])[contexts[t]] - labels[t]
            losses.append(np.mean(np.sum(residuals**2, axis=1)) / 2)
            slope = np.zeros_like(w)
            for row, residual in zip(contexts[t], residuals, strict=True):
                slope[0, row] += w[1] @ residual / POINT.batch
                slope[1] += np.outer(w[0, row], residual) / POINT.batch
            norms.append(np.sum(slope**2))
            w = w - POINT.rate * slope
        np.testing.assert_allclose(found[record, :2], [np.mean(losses), np.mean(norms) ** 0.5], rtol=1e-9)
        seen, given = contexts[5 * record : 5 * record + 5].ravel(), labels[5 * record : 5 * record + 5].reshape(-1, 3)
        np.testing.assert_allclose(found[record, 2], by_the_library(w, seen, given), rtol=1e-6)


def by_the_library(w, rows, labels):
    """The root mean square of first-order susceptibilities of the mean loss to more of each example."""
    with jax.enable_x64(True):
        targets, at = jnp.asarray(labels), jnp.asarray(w)

        def outputs(w, _=None):
            return (w[0] @ w[1])[rows]

        def mean(predictions, data):
            return jnp.mean(jnp.sum((predictions - data) ** 2, axis=1)) / 2

        def example(i):
            return lambda w: jnp.sum((outputs(w)[i] - targets[i]) ** 2) / 2

        def plain(w):
            return mean(outputs(w), targets)

        route = LinearResponse(curvature=GaussNewton(mean, at, targets, outputs=outputs))
        posterior = LocalPosterior.from_function(plain, at, nbeta=1e9, localization=POINT.resolution * 1e9)
        settings = {"route": route, "key": jax.random.key(0)}
        tilted = {str(i): example(i) for i in range(len(rows))}
        response = susceptibility(posterior, tilted=tilted, observables={"loss": plain}, **settings)
    return float(np.mean(response["first_order"].values ** 2) ** 0.5)


def test_detectors_never_see_what_has_not_come():
    """Changed labels from a step on leave all records before it as they are, and no other one."""
    start, contexts, labels, found = series()
    labels = labels.copy()
    labels[10:] += 1.0
    with jax.enable_x64(True):
        rows = (start, contexts, labels)
        changed = monitored(*map(jnp.asarray, (*rows, POINT.rate, POINT.resolution)), every=5)
    np.testing.assert_array_equal(changed[:2], found[:2])
    assert (np.asarray(changed[2:]) != found[2:]).all()


def test_data_that_never_begin_are_never_drawn():
    for kind, silent in (("never", False), ("0.3", True)):
        law = "never" if silent else kind
        _, contexts, _ = drawn(POINT, law, 7.0, np.random.default_rng(0), np.zeros(20))
        assert contexts.max() == 1
    _, contexts, _ = drawn(POINT, "0.9", 7.0, np.random.default_rng(0), np.zeros(20))
    assert contexts[:7].max() == 1
    assert (contexts[7:] == 2).mean() > 0.7


def test_labels_are_targets_with_noise():
    point = SimpleNamespace(**SMALL | {"updates": 2000, "contexts": 3})
    noise = np.where(np.arange(2000) < 1000, 0.1, 0.3)
    _, contexts, labels = drawn(point, "start", 0.0, np.random.default_rng(0), noise)
    for part, size in ((slice(1000), 0.1), (slice(1000, None), 0.3)):
        of_context = [labels[part][contexts[part] == c] for c in range(3)]
        np.testing.assert_allclose([rows.std(0).mean() for rows in of_context], size, rtol=0.05)
    targets = np.stack([rows.mean(0) for rows in of_context])
    np.testing.assert_allclose(targets @ targets.T, np.eye(3), atol=0.1)


def test_controls_change_what_they_say(monkeypatch):
    from iclbook.claims.routing.blind_detection import measure as module

    seen = []
    monkeypatch.setattr(module, "monitored", lambda *run, every: seen.append(run) or np.ones((4, 3)) * [1.0, 2.0, 3.0])
    rows = []
    monkeypatch.setattr(_detection, "first_passages", lambda series, every: rows.append(series) or series)
    for kind, how in (("never", {"noisier": 3.0}), ("0.3", {"noisier": 3.0}), ("0.3", {"silent": True})):
        found = measure(SimpleNamespace(**vars(POINT) | {"kind": kind}), key=jax.random.key(0), **how)
        assert ((found["onset"][1] >= 6) & (found["onset"][1] <= 12)).all()
    np.testing.assert_array_equal(rows[0][0, 0], [1, 2, 3])
    assert [np.asarray(seen[i][1]).max() for i in (2, 4)] == [2, 1]

    def spread(run):
        labels = np.asarray(run[2])
        return [labels[part].std() for part in (slice(6), slice(12, None))]

    even, odd, planted = (spread(seen[i]) for i in (0, 1, 3))
    assert odd[1] / odd[0] > 1.2 * even[1] / even[0]
    assert planted[1] / planted[0] < 1.2


def made_up(kinds=claim.KINDS, seeds=256, tells=None, wrong=0.02, delays=None):
    """Passages of levels 1 and 5: all runs pass the first, and the second as often as a detector tells."""
    rng = np.random.default_rng(0)
    tells = {"loss": 1.0, "gradient": 0.1, "response": 0.5} | (tells or {})
    delays = {"loss": 50.0, "gradient": 300.0, "response": 200.0} | (delays or {})
    levels, shape = np.array([1.0, 5.0]), (len(kinds), seeds, 3, 2, 2)
    onset, first = rng.uniform(900, 1800, shape[:2]), np.full(shape, np.nan)
    first[..., 0] = 700
    for i, kind in enumerate(kinds):
        for j, name in enumerate(_detection.SERIES):
            null = kind in _detection.NULLS
            passes = rng.random((seeds, 2)) < (wrong if null else tells[name])
            at = onset[i, :, None] + delays[name] + rng.uniform(0, 50, (seeds, 2))
            first[i, :, j, :, 1] = np.where(passes, 1000.0 if null else at, np.nan)
            if null:
                first[i, ::2, j, :, 1] = np.nan
    dims = ("kind", "seed", "series", "rule", "level")
    coords = {"kind": list(kinds), "seed": np.arange(seeds), "series": list(_detection.SERIES)}
    coords |= {"rule": list(_detection.RULES), "level": levels}
    attrs = {"configuration": json.dumps({"fixed": claim.FIXED})}
    return xr.Dataset({"first_passage": (dims, first), "onset": (dims[:2], onset)}, coords=coords, attrs=attrs)


_, failing, outcome = judged(claim.check)


def names(dataset, **how):
    return {name.split("[")[0] for name in failing(claim.theory(dataset, **how))}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(claim.theory(made_up())) is Outcome.HOLDS
    assert names(made_up(wrong=0.5)) == {"false_alarms"}
    assert "tells" in names(made_up(tells={"loss": 0.4}))
    assert names(made_up(tells={"response": 0.9})) <= {"more_often"}
    assert "more_often" in names(made_up(tells={"response": 0.95, "loss": 0.5}))
    assert names(made_up(delays={"response": 10.0})) == {"sooner"}


def test_an_alarm_at_every_record_is_false():
    assert "false_alarms" in names(made_up(), calibrated=False)


def test_an_exchange_is_of_the_loss_and_the_response():
    plain, exchanged = (claim.theory(made_up(), exchanged=value)["hit"] for value in (False, True))
    ordered = made_up().sortby("series")  # as a record has it
    xr.testing.assert_allclose(claim.theory(ordered, exchanged=True)["hit"].sel(series=exchanged["series"]), exchanged)
    for name, other in (("loss", "response"), ("gradient", "gradient"), ("response", "loss")):
        np.testing.assert_array_equal(exchanged.sel(series=name), plain.sel(series=other))
    assert {"tells", "more_often", "sooner"} == names(made_up(), exchanged=True)


def test_curves_are_those_of_their_detectors():
    """Also where series are in another order, as in a record."""
    dataset = claim.theory(made_up().sortby("series"))
    found = _detection.curves(dataset)
    for series in _detection.SERIES:
        for rule in _detection.RULES:
            part = found.sel(detector=f"{series}, {rule}")
            cell = dataset.sel(series=series, rule=rule)
            np.testing.assert_allclose(part["hit"], (cell["hit"].sum("judged") + 1) / (cell.sizes["judged"] + 2))
            np.testing.assert_allclose(part["detection_delay"], cell["detection_delay"].median("judged"))


def test_thresholds_are_those_of_the_kind_that_needs_more_and_of_even_seeds():
    """Runs that all alarm in one kind only, or among the seeds that are judged."""
    dataset = made_up()
    loud = dataset.copy(deep=True)
    loud["first_passage"].loc[{"kind": "start", "level": 5.0}] = 1000.0
    assert np.isinf(_detection.thresholds(loud["first_passage"])).all()
    odd = dataset["seed"].values % 2 == 1
    noisy = dataset.copy(deep=True)
    noisy["first_passage"].loc[{"kind": "never", "seed": odd, "level": 5.0}] = 1000.0
    found = claim.theory(noisy)
    np.testing.assert_allclose(found["false_alarm"].mean(), 0.5, atol=0.03)
    assert found.sizes["judged"] == odd.sum()


def test_a_hit_is_an_alarm_within_a_quarter_of_the_run_after_the_onset():
    for delay, wanted in ((-200.0, 0.0), (50.0, 1.0), (650.0, 1.0), (800.0, 0.0)):
        found = claim.theory(made_up(tells=dict.fromkeys(_detection.SERIES, 1.0), delays={"loss": delay}))
        hit = found["hit"].sel(series="loss")
        assert float(hit.mean()) == wanted
        late = found["detection_delay"].sel(series="loss")
        assert bool(late.notnull().any()) == bool(wanted)
        if wanted:
            assert delay <= float(late.min()) <= float(late.max()) <= delay + 50
    assert found["hit"].dims == ("share", "judged", "series", "rule")
    np.testing.assert_allclose(found["share"], [0.01, 0.02, 0.05, 0.15])


def test_rates_need_runs():
    few = claim.theory(made_up(seeds=38))
    assert outcome(few) is Outcome.UNDECIDED
    assert {finding.id for finding in claim.check(few)} == {"runs"}


def test_shares_of_all_and_none_have_an_error():
    for value, wanted in ((1.0, 11 / 12), (0.0, 1 / 12)):
        found = _detection.share_of(xr.DataArray(np.full(10, value), dims="judged"))
        np.testing.assert_allclose(float(found.value), wanted)
        np.testing.assert_allclose(float(found.error), (wanted * (1 - wanted) / 13) ** 0.5)


@pytest.mark.parametrize("late", [True, False])
def test_detectors_listen_after_a_fifth_of_the_run(late):
    rows = np.exp(0.01 * np.random.default_rng(0).normal(size=(60, 1)))
    rows[40 if late else 10] *= 10
    found = _detection.first_passages(rows, 50)[0, :, -1]
    np.testing.assert_array_equal(found, [41 * 50.0] * 2 if late else [np.nan] * 2)
