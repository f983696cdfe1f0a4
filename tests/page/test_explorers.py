"""Explorers answer with the numbers of `icllab.theory`."""

import math

import numpy as np
import pytest

from icllab.page.explorers import EXPLORERS
from icllab.page.explorers.declaration import Choice
from icllab.theory import (
    free_energy,
    induction_landscape,
    learning_coefficients,
    linear_attention,
    preconditioners,
    saddles,
)

NEAR = {"rtol": 1e-12, "atol": 1e-12}


def setting(id, seed, **fixed):
    """A value of every control, drawn from those of its slider."""
    rng = np.random.default_rng(seed)
    controls = EXPLORERS[id].controls
    drawn = {c.name: rng.choice(list(c.options if isinstance(c, Choice) else c.values)).item() for c in controls}
    return drawn | fixed


def by_label(answer):
    return {curve["label"]: (np.array(curve["x"], float), np.array(curve["y"], float)) for curve in answer["curves"]}


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_linear_attention(seed):
    values = setting(
        "linear_attention", seed, x=("tau", "rho", "kappa")[seed], second=("kappa", "alpha", "kappa")[seed]
    )
    law = {name: values[name] for name in ("tau", "alpha", "kappa", "rho", "ridge")}
    answer = EXPLORERS["linear_attention"].answer(**values)
    x, second = values["x"], values["second"]
    formulas = {
        "ICL error, fresh tasks": linear_attention.icl_error,
        "IDG error, pretraining tasks": linear_attention.idg_error,
        "ridge regression on one context": lambda **at: linear_attention.ridge_error(alpha=at["alpha"], rho=at["rho"]),
    }
    for label, (at, errors) in by_label(answer).items():
        np.testing.assert_allclose(errors, formulas[label](**law | {x: at}), rtol=1e-12)
        assert answer["numbers"][label] == pytest.approx(formulas[label](**law), rel=1e-12)
    assert answer["numbers"]["effective ridge ξ"] == pytest.approx(linear_attention.effective_ridge(**law), rel=1e-12)
    assert ("map" in answer) == (x != second) == ("note" not in answer)
    if "map" in answer:
        content = answer["map"]
        grid = {**law, x: np.array(content["x"])[:, None], second: np.array(content["y"])}
        np.testing.assert_allclose(content["z"], linear_attention.icl_error(**grid), rtol=1e-12)
        for name, scale in (("x", np.log), ("y", np.log)):  # the page interpolates between equal steps
            np.testing.assert_allclose(np.diff(scale(content[name])), np.diff(scale(content[name]))[0], rtol=1e-9)
        assert content["mark"]["z"] == pytest.approx(linear_attention.icl_error(**law), rel=1e-12)


def test_without_a_ridge_the_error_at_the_peak_is_none_and_its_neighbours_are_high():
    answer = EXPLORERS["linear_attention"].answer(tau=1)
    assert answer["numbers"]["ICL error, fresh tasks"] is None
    tau, error = by_label(answer)["ICL error, fresh tasks"]
    assert abs(tau[error.argmax()] - 1) <= 1.001e-3
    assert error.max() > 100 * np.median(error)


@pytest.mark.parametrize("seed", range(3))
def test_the_landscape(seed):
    values = setting("induction_landscape", seed, time=50.0 + 40 * seed, against=("loss", "parameters")[seed % 2])
    values["labels"] = values["pairs"] + seed
    sizes = {"pairs": values["pairs"], "labels": values["labels"]}
    order = ["beta", "alpha", "xi"]
    flow = induction_landscape.flow([values[name] for name in order], time=values["time"], levels=(0.5,), **sizes)
    first, second = values["plane"].split("_")
    answer = EXPLORERS["induction_landscape"].answer(**values)
    content, path, columns = answer["map"], answer["map"]["path"], dict(zip(order, flow.parameters.T, strict=True))
    np.testing.assert_allclose([path[name] for name in "xyz"], [columns[first], columns[second], flow.loss], **NEAR)
    now = {name: np.interp(values["moment"] * values["time"], flow.time, columns[name]) for name in order}
    grid = {**now, first: np.array(content["x"])[:, None], second: np.array(content["y"])}
    np.testing.assert_allclose(content["z"], induction_landscape.loss(**grid, **sizes), **NEAR)
    assert content["mark"]["z"] == pytest.approx(induction_landscape.loss(**now, **sizes), rel=1e-12)
    cliff, said = flow.crossings[0.5], answer["numbers"]["time of the cliff, at ln N / 2"]
    assert said == ("not in this time" if math.isnan(cliff) else pytest.approx(cliff, rel=1e-9))
    curves = by_label(answer)
    if values["against"] == "loss":
        np.testing.assert_allclose(curves["loss along the flow"], (flow.time, flow.loss), **NEAR)
    else:
        for (_, strengths), name in zip(curves.values(), order, strict=True):
            np.testing.assert_allclose(strengths, columns[name], **NEAR)


def test_fewer_labels_than_pairs_are_refused_and_the_saddle_is_drawn():
    explorer = EXPLORERS["induction_landscape"]
    with pytest.raises(ValueError, match="labels: expected at least 8"):
        explorer.answer(labels=4)
    saddle = explorer.answer(labels=8)
    assert saddle["numbers"]["time of the cliff, at ln N / 2"] == "not in this time"
    np.testing.assert_allclose(saddle["map"]["path"]["z"], math.log(8), rtol=1e-12)


def _least(sigma, shape, length, law):
    """The least error over multiples of a diagonal matrix, by the formula of the error."""
    tasks = law["task_covariance"]
    total = np.sum(sigma * tasks)
    moment = (length + 1) / length * sigma**2 * tasks + (total + law["noise_variance"]) / length * sigma
    factor = np.sum(sigma**2 * shape * tasks) / np.sum(sigma * shape**2 * moment)
    return preconditioners.loss(np.diag(factor * shape), sigma, length=length, **law)


@pytest.mark.parametrize("seed", range(3))
def test_preconditioners(seed):
    values = setting("preconditioner", seed, x="length")
    sigma = np.arange(1, values["dim"] + 1) ** -values["exponent"]
    sigma = sigma * len(sigma) / sigma.sum()
    law = {"task_covariance": sigma ** values["power"], "noise_variance": values["noise"]}
    total = preconditioners.loss(np.zeros((len(sigma),) * 2), sigma, length=1, **law)
    answer = EXPLORERS["preconditioner"].answer(**values)
    (n, best), (_, step), (_, inverse) = by_label(answer).values()
    for i in range(0, len(n), 7):
        optimum = preconditioners.optimal(sigma, length=int(n[i]), **law).loss
        wanted = [optimum, *(_least(sigma, shape, int(n[i]), law) for shape in (np.ones_like(sigma), 1 / sigma))]
        np.testing.assert_allclose([best[i], step[i], inverse[i]], np.array(wanted) / total, rtol=1e-9)
    products = np.diagonal(preconditioners.optimal(sigma, length=values["length"], **law).matrix) * sigma
    numbers = list(answer["numbers"].values())
    np.testing.assert_allclose(numbers[3:], [products[0], products[-1], sigma[0] / sigma[-1]], rtol=1e-12)


@pytest.mark.parametrize("x", ["inputs", "rank", "n"])
def test_coefficients_of_linear_layers(x):
    values = {"inputs": 6, "hidden": 3, "outputs": 5, "rank": 2, "n": 50.0}
    answer = EXPLORERS["learning_coefficients"].answer(x=x, **values)
    coefficient, multiplicity, half, target = by_label(answer).values()
    for i, at in enumerate(coefficient[0]):
        here = values | {x: at if x == "n" else int(at)}
        sizes = [here[name] for name in ("inputs", "hidden", "outputs", "rank")]
        if sizes[3] > min(sizes[:3]):
            assert np.isnan([part[1][i] for part in (coefficient, multiplicity, half, target)]).all()
            continue
        exact = learning_coefficients.reduced_rank_regression(*sizes)
        wanted = [exact.value, exact.multiplicity, (sizes[0] + sizes[2]) * sizes[1] / 2, exact.at(here["n"])]
        np.testing.assert_allclose([part[1][i] for part in (coefficient, multiplicity, half, target)], wanted, **NEAR)
    assert np.isfinite(coefficient[1]).any()


def test_coefficients_of_a_normal_crossing():
    values = {"k1": 1, "k2": 2, "k3": 1, "h1": 0.5, "h2": 1, "h3": 0, "n": 50.0}
    answer = EXPLORERS["normal_crossing"].answer(**values)
    for k, coefficient, multiplicity in zip(
        *by_label(answer)["λ  learning coefficient"], by_label(answer)["m  multiplicity"][1], strict=True
    ):
        wanted = learning_coefficients.normal_crossing([int(k), 2, 1], [0.5, 1, 0])
        assert (coefficient, multiplicity) == (wanted.value, wanted.multiplicity)


def test_an_impossible_rank_and_a_constant_are_refused():
    with pytest.raises(ValueError, match="rank: expected at most 4, the smallest size, got 5"):
        EXPLORERS["learning_coefficients"].answer(rank=5)
    with pytest.raises(ValueError, match="k1: expected one power above 0"):
        EXPLORERS["normal_crossing"].answer(k1=0, k2=0, k3=0)


def test_the_staircase_is_the_flow_of_aligned_heads_and_its_levels_are_those_of_theory():
    values = setting("saddles", 0, x="time", dim=3, start=0.03, length=20)
    spectrum = np.arange(1, values["dim"] + 1.0) ** -values["exponent"]
    spectrum /= spectrum.sum()
    law = {"length": values["length"], "noise_variance": values["noise"]}
    answer = EXPLORERS["saddles"].answer(**values)
    (time, loss), *levels = by_label(answer).values()
    heads = 0.03 * np.ones(len(spectrum)), 0.03 * np.eye(len(spectrum))[:, None], 0.03 * np.eye(len(spectrum))[:, None]
    path = saddles.flow(*heads, covariance=spectrum, times=time[::10], **law)
    np.testing.assert_allclose(loss[::10], path.loss, atol=2e-3)
    np.testing.assert_allclose([level[1][0] for level in levels], saddles.plateau_losses(spectrum, **law), **NEAR)
    drops = [value for name, value in answer["numbers"].items() if name.startswith("time of drop")]
    np.testing.assert_allclose(drops, saddles.drop_times(spectrum, start=0.03, **law), rtol=1e-9)
    _, *levels = by_label(EXPLORERS["saddles"].answer(**values | {"x": "length"})).values()
    for m, (x, y) in enumerate(levels):
        wanted = [saddles.plateau_losses(spectrum, **law | {"length": int(n)})[m] for n in x[::9]]
        np.testing.assert_allclose(y[::9], wanted, rtol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_free_energies(seed):
    values = setting("free_energies", seed, x="n")
    simple = learning_coefficients.LearningCoefficient(values["simple"], values["simple_m"])
    rich = learning_coefficients.LearningCoefficient(values["rich"], values["rich_m"])
    phases = [free_energy.Phase(values["gap"], simple), free_energy.Phase(0.0, rich, values["constant"])]
    answer = EXPLORERS["free_energies"].answer(**values)
    (n, first), (_, second) = by_label(answer).values()
    np.testing.assert_allclose([first, second], free_energy.posterior_weights(phases, n), **NEAR)
    crossings = [value for name, value in answer["numbers"].items() if name.startswith("crossing ")]
    np.testing.assert_allclose(crossings, free_energy.crossings(*phases), rtol=1e-12)
    difference = np.diff([free_energy.asymptotic(phase, values["n"]) for phase in phases]).item()
    assert answer["numbers"]["free energy of the rich phase minus that of the simple phase"] == pytest.approx(
        difference
    )


def test_equal_phases_cross_nowhere():
    same = {"gap": 0, "simple": 2, "rich": 2, "simple_m": 1, "rich_m": 1, "constant": 0}
    assert EXPLORERS["free_energies"].answer(**same)["numbers"]["crossing"] == "at no n"
