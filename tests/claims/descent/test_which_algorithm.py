"""What is particular to this claim: its verdicts and its check on made-up worlds, and its candidates."""

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr

from icllab.claims.descent.which_algorithm import claim, measure
from icllab.experiments.checks import Outcome, worst
from icllab.tasks import LinearRegression

LAYERS = [1, 2, 4]
LEFT = {"1 step": (0.45, 0.4, 0.35), "ridge": (0.3, 0.12, 0.06), "4 steps": (0.35, 0.2, 0.15)}


def made_up(seeds=3, scatter=0.02, width=1.1, steps=4000, **changed):
    """Fractions unexplained at three depths; ``changed`` replaces some (names with underscores)."""
    rng = np.random.default_rng(0)
    left = LEFT | {name.replace("_", " "): value for name, value in changed.items()}
    u = np.array([left[name] for name in LEFT]).T[:, None, None, :, None]  # layers, rho, step, candidate, seed
    u = u * np.exp(scatter * rng.normal(size=(*u.shape[:-1], seeds)))
    ends = np.stack([u / width, u * width], axis=-1)
    among = np.stack([ends[..., 1] <= tolerance for tolerance in (claim.STRICT, claim.LOOSE)], axis=3)
    dims = ("layers", "rho", "step")
    return xr.Dataset(
        {
            "fraction_unexplained": ((*dims, "candidate", "seed"), u),
            "fraction_unexplained_interval": ((*dims, "candidate", "seed", "bound"), ends),
            "accepted": ((*dims, "tolerance", "candidate", "seed"), among.astype(float)),
            "among": ((*dims, "tolerance", "candidate", "seed"), among.astype(float)),
        },
        coords={
            "layers": LAYERS,
            "rho": [0.25],
            "step": [steps],
            "candidate": list(LEFT),
            "tolerance": [claim.STRICT, claim.LOOSE],
            "bound": ["low", "high"],
        },
    )


def failing(dataset):
    return [finding.id for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed():
    assert {finding.outcome for finding in claim.check(made_up())} == {Outcome.HOLDS}


def test_it_fails_where_a_candidate_is_named():
    assert failing(made_up(**{"4_steps": (0.35, 0.2, 0.002)})) == ["named[layers=4,rho=0.25,step=4000]"]


def test_it_fails_where_one_step_is_nearer_than_ridge():
    found = failing(made_up(ridge=(0.9, 0.12, 0.06)))
    assert found == ["ridge_nearer[layers=1,rho=0.25,step=4000]"]


def test_it_fails_where_depth_does_not_help_ridge_or_helps_one_step_as_much():
    at = "[rho=0.25,step=4000]"
    assert f"ridge_falls{at}" in failing(made_up(ridge=(0.1, 0.12, 0.2)))
    found = failing(made_up(**{"1_step": (0.95, 0.4, 0.1)}))
    assert set(found) == {f"ridge_falls_more{at}", f"step_falls_little{at}"}


def test_it_is_undecided_where_the_data_cannot_tell():
    for dataset in (made_up(seeds=1), made_up(scatter=1.5), made_up().isel(layers=[0])):
        assert worst(finding.outcome for finding in claim.check(dataset)) is not Outcome.HOLDS
    assert worst(finding.outcome for finding in claim.check(made_up().isel(layers=[0]))) is Outcome.UNDECIDED


def test_all_verdicts_are_told_apart():
    dataset = made_up(seeds=2).isel(rho=0, step=0)
    assert set(claim.verdicts(dataset, claim.LOOSE).values.ravel()) == {claim.NONE}
    named = made_up(seeds=2, ridge=(0.3, 0.02, 0.05)).isel(rho=0, step=0)
    found = claim.verdicts(named, claim.LOOSE).transpose("layers", "seed").values
    assert found.tolist() == [[claim.NONE] * 2, ["ridge"] * 2, [claim.UNDECIDED] * 2]
    both = made_up(seeds=2, ridge=(0.02, 0.12, 0.06), **{"4_steps": (0.02, 0.2, 0.15)}).isel(rho=0, step=0)
    assert set(claim.verdicts(both, claim.LOOSE).sel(layers=1).values) == {claim.MANY}


def test_one_step_is_named_where_nothing_of_it_is_left():
    dataset = made_up(**{"1_step": (1e-6, 1e-6, 1e-6)})
    for tolerance in (claim.STRICT, claim.LOOSE):
        assert set(claim.verdicts(dataset.isel(rho=0, step=0), tolerance).values.ravel()) == {"1 step"}
    assert len([id for id in failing(dataset) if id.startswith("named")]) == len(LAYERS)


def test_after_a_short_training_only_verdicts_are_judged():
    whole, short = claim.check(made_up()), claim.check(made_up(steps=100))
    assert {finding.id.split("[")[0] for finding in short} < {finding.id.split("[")[0] for finding in whole}
    assert all(finding.id.startswith(("named", "depths")) for finding in short)


@pytest.mark.parametrize("name", claim.CANDIDATES)
def test_every_candidate_answers_every_position_and_has_its_fitted_parameters(name, getkey):
    candidates, fitted = measure.candidates_of((name,), 2)
    prompt = LinearRegression.convention("garg", dim=2, length=4).sample(key=getkey())
    answers = eqx.filter_jit(candidates[name])(prompt)
    assert answers.shape == (5,)
    assert float(answers[0]) == 0
    assert all(
        jax.numpy.issubdtype(getattr(candidates[name], path).dtype, np.floating) for path in fitted.get(name, [])
    )
    if name == "mean of labels":
        np.testing.assert_allclose(answers[-1], np.mean(prompt.y[:-1]), rtol=1e-6)
