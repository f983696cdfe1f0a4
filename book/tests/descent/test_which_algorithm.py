"""What is particular to this claim: its verdicts and its check on made-up worlds, and its candidates."""

from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.descent.which_algorithm import claim, measure
from icllab.diagnostics import Fitted
from icllab.tasks import LinearRegression

LAYERS = [1, 2, 4]
NEAR = {
    "1 step": (0.45, 0.4, 0.36),
    "2 steps": (0.35, 0.25, 0.2),
    "4 steps": (0.3, 0.2, 0.1),
    "ridge": (0.29, 0.12, 0.06),
}
OWN = {1: (2e-4, 3e-4, 3e-4, 0.2), 2: (0.4, 2e-4, 2e-4, 0.15), 4: (0.6, 0.3, 0.004, 0.5)}  # of linear attention


def made_up(
    seeds=4, scatter=0.02, width=1.1, further=2.5, loss=(1.6, 1.3, 1.12), linear_loss=(2.2, 1.65, 1.5), **changed
):
    """Fractions unexplained of both kinds at three depths; ``changed`` are those of transformers, near training."""
    rng = np.random.default_rng(0)
    names = list(NEAR)
    near = np.array([(NEAR | {name.replace("_", " "): values for name, values in changed.items()})[n] for n in names]).T
    u = np.stack(
        [np.stack([near, further * near], axis=1), np.array([OWN[b] for b in LAYERS])[:, None].repeat(2, axis=1)]
    )
    u = u[:, :, None, None, ..., None] * np.exp(scatter * rng.normal(size=(2, 3, 1, 1, 2, len(names), seeds)))
    ends = np.stack([u / width, u * width], axis=-1)
    accepted = (ends[..., 1] <= claim.STRICT).astype(float)
    dims = ("network", "layers", "rho", "step")
    losses = np.stack([loss, linear_loss])[:, :, None, None, None] * np.exp(
        scatter * rng.normal(size=(2, 3, 1, 1, seeds))
    )
    by_candidate = (*dims, "input_scale", "candidate", "seed")
    return xr.Dataset(
        {
            "loss_ratio": ((*dims, "seed"), losses),
            "fraction_unexplained": (by_candidate, u),
            "fraction_unexplained_interval": ((*by_candidate, "bound"), ends),
            "accepted": (by_candidate, accepted),
            "among": (by_candidate, accepted),
        },
        coords={
            "network": [claim.SOFTMAX, claim.LINEAR],
            "layers": LAYERS,
            "rho": [0.25],
            "step": [4000],
            "input_scale": [1.0, 2.0],
            "candidate": names,
            "bound": ["low", "high"],
        },
    )


_, failing, _ = judged(claim.check)


def test_it_fails_where_a_candidate_is_named_of_a_transformer():
    found = failing(made_up(further=1.5, **{"4_steps": (0.3, 0.2, 0.002)}))
    assert {f"named[rho=0.25,layers=4,input_scale={scale}]" for scale in (1, 2)} <= {sorted_id(id) for id in found}


def sorted_id(id):
    """The parts of an id in one order."""
    name, _, rest = id.partition("[")
    order = ("rho", "layers", "input_scale")
    parts = dict(part.split("=") for part in rest.rstrip("]").split(","))
    return f"{name}[{','.join(f'{key}={parts[key]}' for key in order if key in parts)}]"


def test_it_fails_where_transformers_have_not_learned():
    """As they are drawn they are none of these too."""
    assert [id.partition("[")[0] for id in failing(made_up(loss=(1.6, 1.6, 1.6)))] == ["learned"]


def test_it_fails_where_the_errors_are_not_matched():
    assert [id.partition("[")[0] for id in failing(made_up(linear_loss=(2.2, 2.2, 1.5)))] == ["matched"]


def test_it_fails_where_linear_attention_is_not_named_its_steps_or_something_else_too():
    for candidate, value in (("2 steps", 0.5), ("ridge", 1e-4), ("1 step", 1e-4)):
        dataset = made_up()
        at = {"network": claim.LINEAR, "layers": 2, "candidate": candidate}
        u, ends, accepted = (
            dataset[name].copy() for name in ("fraction_unexplained", "fraction_unexplained_interval", "accepted")
        )
        u.loc[at], ends.loc[at], accepted.loc[at] = value, value, float(value < claim.STRICT)
        changed = dataset.assign(fraction_unexplained=u, fraction_unexplained_interval=ends, accepted=accepted)
        assert {sorted_id(id) for id in failing(changed)} == {
            f"recognised[rho=0.25,layers=2,input_scale={scale}]" for scale in (1, 2)
        }


def test_it_fails_where_transformers_are_nearer_on_large_inputs_or_one_step_is_nearer_than_ridge():
    assert {id.partition("[")[0] for id in failing(made_up(further=0.4))} == {"further_off"}
    assert "ridge_nearer" in {id.partition("[")[0] for id in failing(made_up(ridge=(0.9, 0.12, 0.06)))}
    assert "ridge_falls" in {id.partition("[")[0] for id in failing(made_up(ridge=(0.1, 0.12, 0.2)))}


def test_all_verdicts_are_told_apart():
    near = made_up(seeds=2).isel(network=0, rho=0, step=0, input_scale=0)
    assert set(claim.verdicts(near).values.ravel()) == {claim.NONE}
    named = made_up(seeds=2, ridge=(0.3, 0.004, 0.0101)).isel(network=0, rho=0, step=0, input_scale=0)
    found = claim.verdicts(named).transpose("layers", "seed").values
    assert found.tolist() == [[claim.NONE] * 2, ["ridge"] * 2, [claim.UNDECIDED] * 2]
    both = made_up(seeds=2).isel(network=1, rho=0, step=0, input_scale=0)
    assert set(claim.verdicts(both).sel(layers=2).values) == {claim.MANY}


def test_the_controls_measure_what_they_say(getkey, monkeypatch):
    """As drawn, linear attention has another error and no step; a construction is its step, near and far.

    Candidates are fitted near training alone, and have these numbers on large inputs; no two judgements share a key.
    """
    calls, identify = [], measure.identify

    def watching(network, candidates, task, *, key, **how):
        step, fitted = candidates["1 step"], {}
        if isinstance(step, Fitted):
            step, fitted = step.predictor, {"1 step": step.attributes}
        calls.append((float(step.rate), float(task.inputs.covariance), fitted, key))
        return identify(network, candidates, task, key=key, **how)

    monkeypatch.setattr(measure, "identify", watching)
    fixed = claim.claim.fixed | {"prompts": 200, "fitting": 60}
    small = {"layers": 1, "rho": 0.25, "step": 2, "seed": (0, 3), "candidate": ("1 step",)} | claim.OUTPUTS | fixed
    point = SimpleNamespace(**small, network=claim.LINEAR)
    drawn = measure.measure(point, key=(key := getkey()), learn=False)
    assert [scale for _, scale, _, _ in calls] == [1, 4, 1, 4]
    assert [fitted for _, _, fitted, _ in calls] == [{"1 step": ["rate"]}, {}] * 2
    first, *others = (rate for rate, *_ in calls)
    assert first == 0.5 == others[1]
    assert len({first, *others}) == 3
    assert len({tuple(jax.random.key_data(key).tolist()) for *_, key in calls}) == 4
    made = measure.measure(point, key=key, constructed=True)
    u, other = (found["fraction_unexplained"][1][..., 0] for found in (made, drawn))
    assert u.shape == (2, 2)
    assert (u < 1e-8).all()
    assert (other > 0.1).all()
    assert drawn["loss_ratio"][1][0] != drawn["loss_ratio"][1][1]
    assert (made["loss_ratio"][1] > 1).all()


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
