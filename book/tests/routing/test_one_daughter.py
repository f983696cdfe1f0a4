"""What effective dimensions are of, when they change, and the check on made-up transitions."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from iclbook.claims.routing import _answers, _transformers
from iclbook.claims.routing.one_daughter import claim, measure
from icllab.lab.checks import Outcome
from icllab.tasks import StringPrograms

SIZES = {"symbols": 3, "length": 2, "width": 2, "layers": 1, "heads": 1, "batch": 4, "prompts": 4, "answered": 2}
POINT = SimpleNamespace(**SIZES, zipf_exponent=1.0, noise=0.25, resolution=1e-3, program=("a", "b"), step=(0, 2))
FIXED = claim.claim.fixed
CASES = {"trained": {}, "lagging": {"lag": 3}}


def test_dimensions_are_of_each_program_along_training(monkeypatch):
    asked, optimizers, trained = [], [], _transformers.train

    def kept(*args, **how):
        optimizers.append(how["optimizer"])
        return trained(*args, **how)

    def noted(network, task, prompts, *, resolution):
        asked.append((np.asarray(network.readout.weight), np.asarray(prompts.tokens)[:, 0] - 3, float(task.noise)))
        return float(len(asked))

    monkeypatch.setattr(_answers, "effective_dimension", noted)
    monkeypatch.setattr(_transformers, "train", kept)
    point = SimpleNamespace(**vars(POINT), seed=(0,))
    found = {how: measure.measure(point, key=jax.random.key(0), **kw) for how, kw in CASES.items()}
    assert found["trained"]["effective_dimension"][0] == ("seed", "program", "step")
    np.testing.assert_array_equal(found["trained"]["effective_dimension"][1][0], [[1, 2], [3, 4]])
    of = [set(programs.tolist()) for _, programs, _ in asked]
    assert of == [{0}, {0}, {1}, {1}] * 2
    assert {noise for *_, noise in asked} == {0.25}
    weights = [weight for weight, *_ in asked]
    for first, last, same in ((0, 1, False), (0, 2, True), (1, 3, True), (0, 4, True), (1, 5, False)):
        assert np.array_equal(weights[first], weights[last]) == same
    losses = [found[how]["program_loss"][1] for how in CASES]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert np.abs(np.diff(losses[0])).min() > 0
    assert [adam_rate(one) for one in optimizers] == pytest.approx([0.003] * 2, rel=1e-4)


def made_up(own=1.3, drift=0.9, seeds=12, last=claim.STEPS[-1], late=0):
    """Losses that halve at 100, 150, ... updates, and dimensions that rise there, and drift with the time."""
    rng = np.random.default_rng(0)
    steps = np.array([step for step in claim.STEPS if step <= last])
    times = 100 + 50 * np.arange(6) * np.exp(0.1 * rng.normal(size=(seeds, 1)))
    times[:, 6 - late :] = 2000
    t = np.maximum(steps, 1)
    losses = claim.plateau(FIXED) / (1 + (t / times[..., None]) ** 8)
    dimension = 100 * drift ** (np.log(t) / np.log(4)) * own ** (1 / (1 + (times[..., None] / t) ** 8))
    dims = ("layers", "seed", "program", "step")
    coords = {"layers": [2], "seed": range(seeds), "program": list(claim.PROGRAMS), "step": steps}
    attrs = {"configuration": json.dumps({"fixed": FIXED})}
    rows = {"program_loss": (dims, losses[None]), "effective_dimension": (dims, dimension[None])}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs))


outcomes, failing, outcome = judged(claim.check)


def test_the_plateau_is_that_of_guessing_above_the_entropy():
    task = StringPrograms.init(functions=1, symbols=5, lengths=(2,), noise=0.25, key=jax.random.key(0))
    assert claim.plateau(FIXED) == pytest.approx(np.log(5) - task.answer_entropy(), rel=1e-6)


def test_changes_are_from_half_the_time_to_twice_of_it():
    steps, dimension = np.array([0, 10, 20, 40, 80]), np.array([[9.0, 1, 2, 4, 8], [9.0, 8, 8, 2, 2]])
    found = claim._changes(dimension, np.array([20.0, 45.0]), steps)
    np.testing.assert_allclose(found[0], np.log([4, 1 / 4]))
    assert np.isnan(found[1]).all()
    found = claim._changes(dimension, np.array([np.nan, 28.284271]), steps)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], np.log([4, (2 * 2) ** 0.5 / 8]), rtol=1e-6)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(drift=0.5)) == ["dimension"]
    assert set(failing(made_up(own=0.8, drift=1.5))) == {"relative"}
    assert set(failing(made_up(own=0.7, drift=1.0))) == {"dimension", "relative"}


def test_the_check_is_undecided_where_programs_are_late_or_missing():
    assert outcome(made_up(late=1)) is Outcome.HOLDS
    assert outcomes(made_up(late=2))["learned"] is Outcome.UNDECIDED
