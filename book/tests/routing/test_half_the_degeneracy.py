"""The check on made-up coefficients, and what is handed to the diagnostics."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

import icllab as icl
from iclbook.claims.routing.half_the_degeneracy import claim, measure
from icllab.lab.checks import Outcome

HIDDEN = (1, 2, 3)


def made_up(degenerate=0, few=0.0, error=0.004, **conditions):
    """Coefficients as ranks say; ``degenerate`` is added to the degeneracy, ``few`` to the few-shot coefficient."""
    rank = np.array([[k, 4] for k in HIDDEN])[:, None].repeat(2, axis=1)  # [hidden, point, varied]
    coefficient = np.stack([rank / 2 + few, np.full(rank.shape, 2.0)], axis=-1)
    dims = ("hidden", "point", "varied")
    settings = {"annealing_warnings": 0.0, "map_converged": 1.0, "training_ratio": 0.6} | conditions
    dataset = xr.Dataset(
        {
            "learning_coefficient": ((*dims, "side"), coefficient),
            "learning_coefficient_error": ((*dims, "side"), np.full(coefficient.shape, error)),
            "coefficient_difference": (dims, coefficient[..., 1] - coefficient[..., 0]),
            "coefficient_difference_error": (dims, np.full(rank.shape, 1.4 * error)),
            "map_degeneracy": (dims, 4.0 - rank + degenerate),
            **{name: (dims, np.full(rank.shape, value)) for name, value in settings.items()},
        },
        coords={"hidden": list(HIDDEN), "point": list(claim.POINTS), "varied": list(claim.VARIED)}
        | {"side": list(claim.SIDES)},
        attrs={"configuration": json.dumps({"fixed": {"dim": 4}})},
    )
    return claim.theory(dataset).expand_dims(particles=[500])


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_each_part_is_told():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(degenerate=1)) == {"degeneracy", "half"}
    assert names(made_up(few=0.3)) == {"coefficient", "half"}
    assert {"degeneracy", "coefficient"} == names(claim.theory(made_up(), whole=True))


@pytest.mark.parametrize(
    "conditions", [{"annealing_warnings": 1.0}, {"map_converged": 0.0}, {"training_ratio": 0.9}, {"error": 0.1}]
)
def test_it_is_undecided_where_the_data_cannot_tell(conditions):
    assert outcome(made_up(**conditions)) is Outcome.UNDECIDED


def test_the_map_is_that_of_the_model_and_only_what_varies_moves(monkeypatch):
    """The few-shot loss is the divergence from the answers of the model, with the last context, in NumPy."""
    seen, ranks = [], []

    def estimated(posterior, zero_shot, *, key, **options):
        few_shot, at = posterior.loss, posterior.at
        seen.append((few_shot, at, zero_shot, tuple(np.asarray(jax.random.key_data(key)).tolist())))
        rows = {"estimate": ("side", [1.0, 2.0]), "estimate_error": ("side", [0.1, 0.1])}
        rows |= {"difference": 1.0, "difference_error": 0.1}
        return xr.Dataset(rows, {"side": list(claim.SIDES)}, {"warnings": ["few_shot: one", "pushed_forward: two"]})

    def ranked(model, task, context, *, weights, **options):
        ranks.append((model, context, len(jax.tree.leaves(weights(model)))))
        return SimpleNamespace(degeneracy=3, converged=True)

    monkeypatch.setattr(measure, "context_coefficients", estimated)
    monkeypatch.setattr(measure, "context_rank", ranked)
    point = SimpleNamespace(dim=4, length=8, hidden=2, point=("drawn",), varied=claim.VARIED, side=claim.SIDES)
    point = SimpleNamespace(**vars(point), nbeta=1e4, localization=1.0, repeats=4, particles=10, updates=5)
    found = measure.measure(point, key=jax.random.key(0))
    assert [count for *_, count in ranks] == [1, 2]
    model, context, _ = ranks[0]
    h = np.mean(np.asarray(context.y)[:-1, None] * np.asarray(context.x)[:-1], axis=0)
    down, up, slow = (np.asarray(leaf) for leaf in (model.down, model.up, model.slow))
    for (few_shot, at, zero_shot, _), moves_up in zip(seen, (False, True), strict=True):
        assert set(at) == ({"down", "up"} if moves_up else {"down"})
        moved = jax.tree.map(lambda leaf: leaf + 0.1, at)
        image, other = slow + up @ down @ h, slow + (up + 0.1 * moves_up) @ (down + 0.1) @ h
        np.testing.assert_allclose(zero_shot.context_map(moved), other, rtol=1e-4)
        np.testing.assert_allclose(few_shot(moved), np.sum((other - image) ** 2) / 2, rtol=1e-3)
        assert float(few_shot(at)) == 0
    assert seen[0][3] != seen[1][3]
    assert found["annealing_warnings"][1].tolist() == [[1, 1]]
    measure.measure(point, key=jax.random.key(0), at_zero=True)
    assert float(jnp.abs(seen[3][1]["down"]).max()) == 0
    assert float(jnp.abs(seen[2][1]["down"]).max()) > 0


@pytest.mark.parametrize(("warned", "verdict"), [(1, Outcome.HOLDS), (2, Outcome.UNDECIDED)])
def test_an_estimate_that_warns_is_left_out_and_one_in_ten_may(warned, verdict):
    """Of twelve estimates; what is left out is off by 0.5, and no other is."""
    dataset = made_up()
    for place in range(warned):
        at = {"particles": 0, "hidden": place, "point": 1, "varied": 1}
        dataset["annealing_warnings"][at] = 2.0
        dataset["learning_coefficient"][at | {"side": 0}] += 0.5
        dataset["coefficient_difference"][at] -= 0.5
    assert failing(dataset) == []
    assert outcome(dataset) is verdict


def test_an_estimate_that_is_off_without_a_warning_fails():
    dataset = made_up()
    dataset["coefficient_difference"][{"particles": 0, "hidden": 0, "point": 1, "varied": 1}] -= 0.5
    assert names(dataset) == {"half"}


def test_the_gap_is_proportional_to_the_specialisation():
    """Recorded differences of coefficients on the share of the four directions that a context takes away: slope 2."""
    recorded = icl.recorded("routing/half_the_degeneracy").sel(varied="A")
    gap, error = (recorded[f"coefficient_difference{part}"].values.ravel() for part in ("", "_error"))
    share = recorded["map_degeneracy"].values.ravel() / 4
    assert set(share) == {0.25, 0.5, 0.75}
    weights = share**2 / error**2
    slope, uncertainty = np.sum(weights * gap / share) / np.sum(weights), np.sum(weights) ** -0.5
    assert uncertainty < 0.005
    assert abs(slope - 2) < 3 * uncertainty
    assert (np.abs(gap - 2 * share) < 3 * error).all()
