"""The maps of this claim, its closed forms and its check on made-up numbers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing.degeneracy_and_the_sign import claim, measure
from iclbook.claims.routing.degeneracy_and_the_sign.measure import map_of
from icllab.lab.checks import Outcome

EXACT = {
    "BAh, 1 unit": (0.5, 1.5),
    "BAh, 2 units": (1.0, 1.5),
    "BAh, 3 units": (1.5, 1.5),
    "BAh, 4 units": (1.5, 1.5),
    "w1 w2": (0.5, 0.5),
    "|w|^2": (0.75, 0.5),
    "(w1^2, w2)": (0.125, 0.125),
}
DENSITIES = {"BAh, 1 unit": -1, "BAh, 2 units": -1, "|w|^2": 1, "(w1^2, w2)": -1}


def made_up(error=0.004, warned=0.0, maps=claim.MAPS, signs=None, dense=None, **shifts):
    """The closed forms with a scatter; ``shifts``: what is added to the coefficient of one side."""
    values = np.array([[EXACT[name][side == "zero_shot"] for side in claim.SIDES] for name in maps])
    values = values + np.array([shifts.get(side, 0.0) for side in claim.SIDES])
    errors = np.array([error * EXACT[name][1] for name in maps])
    powers = np.array([claim.POWERS.get(name, 0.0) for name in maps]) + shifts.get("exponent", 0.0)
    densities = [DENSITIES.get(name, 0) for name in maps]
    sign = np.array([np.sign(EXACT[name][0] - EXACT[name][1]) for name in maps]) if signs is None else np.array(signs)
    rows = {
        "learning_coefficient": (("map", "side"), values + errors[:, None] / 2),
        "learning_coefficient_error": (("map", "side"), np.repeat(errors[:, None], 2, axis=1)),
        "coefficient_difference": ("map", values[:, 1] - values[:, 0] + errors),
        "coefficient_difference_error": ("map", errors),
        "coefficient_sign": ("map", sign),
        "density_sign": ("map", densities if dense is None else dense),
        "density_exponent": ("map", powers),
        "density_exponent_error": ("map", np.full(len(maps), 10 * error)),
        "annealing_warnings": ("map", np.full(len(maps), warned)),
    }
    whole = xr.Dataset(rows, coords={"map": list(maps), "side": list(claim.SIDES)})
    return claim.theory(whole).expand_dims(particles=[1000])


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_closed_forms_are_those_of_the_exact_toys():
    for name, (few, zero) in EXACT.items():
        found = [one.value for one in claim.exact_coefficients(name)]
        assert found == [few, zero]
    # A tie with a logarithm has another multiplicity.
    assert claim.exact_coefficients("w1 w2")[0].multiplicity == 2
    assert claim.exact_coefficients("BAh, 3 units")[0].multiplicity == 2


def test_maps_have_no_slope_at_zero_and_are_regular_away_from_it():
    """By differences, on the host."""
    for name in ("BAh, 2 units", "w1 w2", "|w|^2"):  # of (w1^2, w2) the second is regular
        for away, full in ((0.0, False), (1.0, True)):
            context_map, at = map_of(name, away)
            leaves, tree = jax.tree.flatten(at)
            flat = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)
            ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

            def value(w, leaves=leaves, tree=tree, ends=ends, context_map=context_map):
                parts = [p.reshape(leaf.shape) for p, leaf in zip(np.split(w, ends), leaves, strict=True)]
                return np.ravel(context_map(jax.tree.unflatten(tree, parts)))

            columns = [(value(flat + 1e-3 * row) - value(flat - 1e-3 * row)) / 2e-3 for row in np.eye(len(flat))]
            found = np.linalg.matrix_rank(np.array(columns), tol=1e-2)
            assert found == (len(value(flat)) if full else 0), name


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(few_shot=0.12)) == {"coefficient", "tie"}
    assert names(made_up(signs=[-1, -1, 0, 0, 0, -1, 0])) == {"sign"}
    assert names(made_up(dense=[-1, -1, 0, 0, 0, 1, 0])) == {"density"}
    assert names(made_up(exponent=0.4)) == {"exponent"}


def test_a_density_that_diverges_sets_no_sign_at_a_singular_loss():
    dataset = made_up().isel(particles=0)
    assert float(dataset["density_sign_theory"].sel(map=claim.SINGULAR)) == -1
    assert float(dataset["coefficient_sign_theory"].sel(map=claim.SINGULAR)) == 0
    assert {"sign"} == names(claim.theory(dataset, regular=True).expand_dims(particles=[1000]))


def test_the_margin_of_a_tie_is_a_tenth_of_the_coefficient():
    """Of the singular loss a difference of 0.02 is no tie, of three units one of 0.1 is."""
    for name, shift, told in ((claim.SINGULAR, 0.02, {"tie"}), ("BAh, 3 units", 0.1, set())):
        dataset = made_up()
        moved = dataset["coefficient_difference"] + shift * (dataset["map"] == name)
        assert names(dataset.assign(coefficient_difference=moved)) == told


@pytest.mark.parametrize("made", [{"error": 0.04}, {"warned": 1.0}, {"maps": claim.MAPS[:3]}])
def test_the_check_is_undecided_where_the_data_cannot_tell(made):
    assert outcome(made_up(**made)) is Outcome.UNDECIDED


def test_a_context_that_could_only_lower_is_told_from_one_that_raises():
    dataset = made_up().isel(particles=0)
    assert {"coefficient", "sign"} <= names(claim.theory(dataset, never_above=True).expand_dims(particles=[1000]))


def test_losses_draws_and_keys_are_those_of_the_map(monkeypatch):
    """The few-shot loss is the zero-shot one of the map; draws and populations have keys of their own."""
    seen = []

    def estimated(posterior, zero_shot, *, key, **options):
        assert zero_shot.multiplicities == claim.MULTIPLICITIES
        seen.append((posterior.loss, zero_shot, posterior.at, posterior.nbeta, jax.random.key_data(key).tolist()))
        rows = {
            "estimate": ("side", [1.0, 2.0]),
            "estimate_error": ("side", [0.1, 0.1]),
            "multiplicity": ("side", [1, 1]),
        }
        rows |= {"difference": 1.0, "difference_error": 0.1}
        return xr.Dataset(rows, {"side": list(claim.SIDES)}, {"sign": "tie", "warnings": ["pushed_forward: one"]})

    def counted(context_map, at, *, key, draws, **options):
        seen.append((context_map, draws, jax.random.key_data(key).tolist()))
        return xr.Dataset({"exponent": ("m", [0.5]), "exponent_error": ("m", [0.1])}, attrs={"density": "vanishes"})

    monkeypatch.setattr(measure, "context_coefficients", estimated)
    monkeypatch.setattr(measure, "pushed_density", counted)
    point = SimpleNamespace(side=claim.SIDES, nbeta=1e6, nbeta_singular=1e12, localization=1.0, draws=7, groups=4)
    for name, known, scale in (("(w1^2, w2)", 0.3**4 * 0.5**8, 1e12), ("|w|^2", 0.34**2 / 2, 1e6)):
        seen.clear()
        cell = SimpleNamespace(**vars(point), map=name, particles=10, repeats=2)
        found = measure.measure(cell, key=jax.random.key(0))
        (few_shot, zero_shot, at, nbeta, of_populations), (context_map, draws, of_draws) = seen
        w = jnp.array([0.3, 0.5, 0.0])[: at.size]
        assert float(few_shot(w)) == pytest.approx(known, rel=1e-4)
        assert float(zero_shot.loss(context_map(w))) == pytest.approx(known, rel=1e-4)
        assert (nbeta, draws) == (scale, 7)
        assert of_populations != of_draws
        assert (found["density_sign"][1], found["annealing_warnings"][1]) == (1, 0)
