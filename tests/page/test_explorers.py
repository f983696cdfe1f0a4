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
    posterior_integrals,
    preconditioners,
    saddles,
)

NEAR = {"rtol": 1e-12, "atol": 1e-12}


def drawn(rng, control):
    """A value within a control's range."""
    if isinstance(control, Choice):
        return str(rng.choice(list(control.options)))
    if control.scale.startswith("log"):
        value = math.exp(rng.uniform(math.log(control.low), math.log(control.high)))
    else:
        value = rng.uniform(control.low, control.high)
    return round(value) if control.scale.endswith("integer") else min(max(value, control.low), control.high)


def setting(id, seed, **fixed):
    rng = np.random.default_rng(seed)
    return {control.name: drawn(rng, control) for control in EXPLORERS[id].controls} | fixed


def by_label(answer):
    return {curve["label"]: (np.array(curve["x"], float), np.array(curve["y"], float)) for curve in answer["curves"]}


@pytest.mark.parametrize("seed", range(6))
def test_errors_of_linear_attention(seed):
    values = setting("linear_attention", seed)
    if seed == 0:
        values |= {"x": "tau", "second": "kappa", "error": "icl", "ridge": 0}
    law = {name: values[name] for name in ("tau", "alpha", "kappa", "rho", "ridge")}
    answer = EXPLORERS["linear_attention"].answer(**values)
    curves, x = by_label(answer), values["x"]
    formulas = {"icl": linear_attention.icl_error, "idg": linear_attention.idg_error}
    for label, kind in (("ICL error, fresh tasks", "icl"), ("IDG error, pretraining tasks", "idg")):
        at, found = curves[label]
        for i in range(0, len(at), 17):
            np.testing.assert_allclose(found[i], formulas[kind](**{**law, x: at[i]}), rtol=1e-12)
    at, found = curves["ridge regression on one context"]
    for i in range(0, len(at), 29):
        here = {**law, x: at[i]}
        ridge = linear_attention.ridge_error(alpha=here["alpha"], rho=here["rho"])
        np.testing.assert_allclose(found[i], ridge, rtol=1e-12)
    assert answer["numbers"]["ICL error"] == pytest.approx(formulas["icl"](**law), rel=1e-12)
    assert answer["numbers"]["IDG error"] == pytest.approx(formulas["idg"](**law), rel=1e-12)
    assert answer["numbers"]["effective ridge ξ"] == pytest.approx(linear_attention.effective_ridge(**law), rel=1e-12)
    assert ("map" in answer) == (x != values["second"]) == ("note" not in answer)
    if "map" in answer:
        content = answer["map"]
        for i, j in np.random.default_rng(seed).integers(0, 45, (12, 2)):
            here = {**law, x: content["x"][i], values["second"]: content["y"][j]}
            np.testing.assert_allclose(content["z"][i][j], formulas[values["error"]](**here), rtol=1e-12)
        assert content["mark"]["z"] == pytest.approx(formulas[values["error"]](**law), rel=1e-12)


def test_without_a_ridge_the_error_at_the_peak_is_none_and_its_neighbours_are_high():
    answer = EXPLORERS["linear_attention"].answer(tau=1)
    assert answer["numbers"]["ICL error"] is None
    tau, error = by_label(answer)["ICL error, fresh tasks"]
    assert abs(tau[error.argmax()] - 1) <= 1.001e-3
    assert error.max() > 100 * np.median(error)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("third", ["flow", "moment", "fixed"])
def test_the_landscape(seed, third):
    values = setting("induction_landscape", seed, third=third, time=50.0 + 40 * seed)
    values["labels"] = values["pairs"] + seed
    values |= {name: abs(values[name]) + 0.1 for name in ("beta", "alpha", "xi")}  # starts whence all strengths grow
    values |= {"beta": min(values["beta"], 5), "alpha": min(values["alpha"], 5), "xi": min(values["xi"], 5)}
    sizes = {"pairs": values["pairs"], "labels": values["labels"]}
    start = [values[name] for name in ("beta", "alpha", "xi")]
    flow = induction_landscape.flow(start, time=values["time"], levels=(0.5,), **sizes)
    first, other = values["plane"].split("_")
    order = ["beta", "alpha", "xi"]
    (left,) = set(order) - {first, other}
    answer = EXPLORERS["induction_landscape"].answer(**values)
    content, path = answer["map"], answer["map"]["path"]
    columns = dict(zip(order, flow.parameters.T, strict=True))
    np.testing.assert_allclose(path["x"], columns[first], **NEAR)
    np.testing.assert_allclose(path["y"], columns[other], **NEAR)
    np.testing.assert_allclose(path["z"], flow.loss, **NEAR)
    now = {name: np.interp(values["moment"] * values["time"], flow.time, columns[name]) for name in order}
    for i, j in np.random.default_rng(seed).integers(0, 61, (12, 2)):
        at = {first: content["x"][i], other: content["y"][j]}
        grows = (np.diff(columns[first]) > 0).all()
        leader = np.interp(at[first], columns[first], columns[left]) if grows else None
        at[left] = {"flow": leader, "moment": now[left], "fixed": values["level"]}[third]
        if at[left] is not None:
            np.testing.assert_allclose(content["z"][i][j], induction_landscape.loss(**at, **sizes), **NEAR)
    assert content["mark"]["z"] == pytest.approx(induction_landscape.loss(**now, **sizes), rel=1e-12)
    when, said = flow.crossings[0.5], answer["numbers"]["time of the cliff, at ln N / 2"]
    assert said == ("not in this time" if math.isnan(when) else pytest.approx(when, rel=1e-9))
    curves = by_label(answer)
    if values["against"] == "loss":
        np.testing.assert_allclose(curves["loss along the flow"], (flow.time, flow.loss), **NEAR)
    else:
        for (_, found), name in zip(curves.values(), order, strict=True):
            np.testing.assert_allclose(found, columns[name], **NEAR)


def test_on_the_flow_the_map_has_the_loss_of_the_path():
    """Where the third parameter follows the flow, the map has the flow's loss."""
    answer = EXPLORERS["induction_landscape"].answer()
    content, path = answer["map"], answer["map"]["path"]
    rows = [i for i, x in enumerate(content["x"]) if path["x"][0] <= x <= path["x"][-1]]
    assert len(rows) > 20
    for i in rows:
        y, z = (np.interp(content["x"][i], path["x"], path[name]) for name in ("y", "z"))
        around = np.interp(y, content["y"], content["z"][i])
        assert around == pytest.approx(z, abs=0.05)


def test_where_the_first_parameter_turns_back_the_third_follows_its_longest_way():
    """From beta = 0.5 and a negative alpha beta falls first; the map is of the flow after that."""
    start, sizes = (0.5, -1.0, 1.0), {"pairs": 8, "labels": 32}
    flow = induction_landscape.flow(start, time=200, **sizes)
    beta, _, xi = flow.parameters.T
    turn = beta.argmin()
    assert 0 < turn < len(beta) - 1
    assert (np.diff(beta[turn:]) > 0).all()
    content = EXPLORERS["induction_landscape"].answer(beta=0.5, alpha=-1, xi=1)["map"]
    for i in range(0, 61, 6):
        at = (content["x"][i], content["y"][30], np.interp(content["x"][i], beta[turn:], xi[turn:]))
        assert content["z"][i][30] == pytest.approx(induction_landscape.loss(*at, **sizes), rel=1e-12)


def test_fewer_labels_than_pairs_are_refused_and_the_saddle_is_drawn():
    explorer = EXPLORERS["induction_landscape"]
    with pytest.raises(ValueError, match="labels: expected at least 8"):
        explorer.answer(labels=4)
    saddle = explorer.answer(labels=8)
    assert saddle["numbers"]["time of the cliff, at ln N / 2"] == "not in this time"
    np.testing.assert_allclose(saddle["map"]["path"]["z"], math.log(8), rtol=1e-12)


def _least(sigma, shape, length, law):
    """The least error over multiples of a diagonal matrix, by the formula of the error."""
    tasks = np.ones_like(sigma) if law["task_covariance"] is None else law["task_covariance"]
    total = np.sum(sigma * tasks)
    moment = (length + 1) / length * sigma**2 * tasks + (total + law["noise_variance"]) / length * sigma
    factor = np.sum(sigma**2 * shape * tasks) / np.sum(sigma * shape**2 * moment)
    return factor, preconditioners.loss(np.diag(factor * shape), sigma, length=length, **law)


@pytest.mark.parametrize("seed", range(8))
def test_preconditioners(seed):
    values = setting("preconditioner", seed, against=("spectrum", "length")[seed % 2])
    values["raised"] = min(values["raised"], values["dim"] - 1)
    order = np.arange(1, values["dim"] + 1)
    sigma = order ** -values["exponent"]
    if values["spectrum"] == "levels":
        sigma = np.where(order <= values["raised"], values["ratio"], 1.0)
    sigma = sigma * len(sigma) / sigma.sum()
    tasks = {"identity": None, "inverse": 1 / sigma, "same": sigma}[values["tasks"]]
    law = {"task_covariance": tasks, "noise_variance": values["noise"]}
    total = preconditioners.loss(np.zeros((len(sigma),) * 2), sigma, length=1, **law)
    answer = EXPLORERS["preconditioner"].answer(**values)
    best, step, inverse = answer["curves"]
    shapes = {step["label"]: np.ones_like(sigma), inverse["label"]: 1 / sigma}
    if values["against"] == "spectrum":
        matrix = preconditioners.optimal(sigma, length=values["length"], **law).matrix
        np.testing.assert_allclose(best["x"], sigma[::-1], **NEAR)
        np.testing.assert_allclose(best["y"], np.diagonal(matrix)[::-1], **NEAR)
        for one in (step, inverse):
            factor, _ = _least(sigma, shapes[one["label"]], values["length"], law)
            np.testing.assert_allclose(one["y"], factor * shapes[one["label"]][::-1], rtol=1e-9)
    else:
        for i, n in enumerate(best["x"]):
            optimum = preconditioners.optimal(sigma, length=n, **law).loss
            np.testing.assert_allclose(best["y"][i], optimum / total, **NEAR)
            for one in (step, inverse):
                found = _least(sigma, shapes[one["label"]], n, law)[1]
                np.testing.assert_allclose(one["y"][i], found / total, rtol=1e-12)
    assert answer["numbers"]["error of zero, tr ΣW"] == pytest.approx(total, rel=1e-12)


def test_more_raised_eigenvalues_than_dimensions_are_refused():
    with pytest.raises(ValueError, match="raised: expected fewer than the 4 dimensions, got 4"):
        EXPLORERS["preconditioner"].answer(spectrum="levels", dim=4, raised=4)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("model", ["layers", "crossing"])
def test_exact_coefficients(seed, model):
    values = setting("learning_coefficients", seed, model=model)
    values["rank"] = min(values[name] for name in ("rank", "inputs", "hidden", "outputs"))
    values["k2"] += 1
    values["k2"] = min(values["k2"], 12)
    powers, weights = ([values[f"{letter}{i}"] for i in (1, 2, 3)] for letter in "kh")

    def coefficient(**changed):
        here = {**values, **changed}
        if model == "crossing":
            return learning_coefficients.normal_crossing([here["k1"], *powers[1:]], weights)
        sizes = (here["inputs"], here["hidden"], here["outputs"])
        return learning_coefficients.reduced_rank_regression(*sizes, here["rank"])

    answer = EXPLORERS["learning_coefficients"].answer(**values)
    against = values["against" if model == "layers" else "crossing_against"]
    first, second = answer["curves"][:2]
    if against == "n":
        np.testing.assert_allclose(first["y"], coefficient().at(np.array(first["x"])), **NEAR)
        assert set(second["y"]) == {coefficient().value}
    else:
        found = [coefficient(**{against: x}) for x in first["x"]]
        assert first["y"] == [one.value for one in found]
        assert second["y"] == [one.multiplicity for one in found]
        assert answer["axes"]["mark"] in first["x"]
    assert (answer["numbers"]["λ"], answer["numbers"]["m"]) == tuple(coefficient())


def test_an_impossible_rank_and_a_constant_are_refused():
    explorer = EXPLORERS["learning_coefficients"]
    with pytest.raises(ValueError, match="rank: expected at most 4, the smallest size, got 5"):
        explorer.answer(rank=5)
    with pytest.raises(ValueError, match="k1: expected one power above 0"):
        explorer.answer(model="crossing", k1=0, k2=0, k3=0)
    half = explorer.answer(hidden=1, rank=0)["curves"][2]
    assert half["y"] == [(6 + 5) * h / 2 for h in half["x"]]


@pytest.mark.parametrize("seed", range(3))
def test_the_staircase_is_the_flow_of_aligned_heads_and_its_levels_are_those_of_theory(seed):
    values = setting("saddles", seed, against="time", dim=3 + seed, start=0.03)
    spectrum = np.arange(1, values["dim"] + 1.0) ** -values["exponent"]
    spectrum /= spectrum.sum()
    law = {"length": values["length"], "noise_variance": values["noise"]}
    answer = EXPLORERS["saddles"].answer(**values)
    time, loss = by_label(answer)["loss"]
    heads = 0.03 * np.ones(len(spectrum)), 0.03 * np.eye(len(spectrum))[:, None], 0.03 * np.eye(len(spectrum))[:, None]
    path = saddles.flow(*heads, covariance=spectrum, times=time[::6], **law)
    np.testing.assert_allclose(loss[::6], path.loss, atol=2e-3)
    levels = saddles.plateau_losses(spectrum, **law)
    assert set(by_label(answer)["level of the plateau"][1]) <= set(levels)
    against = by_label(EXPLORERS["saddles"].answer(**values | {"against": "length"}))
    assert len(against) == len(spectrum) + 1
    for m, (x, y) in enumerate(against.values()):
        wanted = [saddles.plateau_losses(spectrum, **law | {"length": int(n)})[m] for n in x[::9]]
        np.testing.assert_allclose(y[::9], wanted, rtol=1e-12)


@pytest.mark.parametrize("quantity", ["energies", "difference", "weights"])
@pytest.mark.parametrize("seed", range(3))
def test_free_energies_of_the_expansion(seed, quantity):
    values = setting("free_energies", seed, model="expansion", quantity=quantity)
    simple = learning_coefficients.LearningCoefficient(values["simple"], values["simple_m"])
    rich = learning_coefficients.LearningCoefficient(values["rich"], values["rich_m"])
    phases = [free_energy.Phase(values["gap"], simple), free_energy.Phase(0.0, rich, values["constant"])]
    answer = EXPLORERS["free_energies"].answer(**values)
    n = np.array(answer["curves"][0]["x"])
    found = [np.array(curve["y"]) for curve in answer["curves"]]
    energies = [free_energy.asymptotic(phase, n) for phase in phases]
    wanted = {
        "energies": energies,
        "difference": [energies[1] - energies[0], 0 * n],
        "weights": free_energy.posterior_weights(phases, n),
    }[quantity]
    np.testing.assert_allclose(found, wanted, **NEAR)
    crossings = free_energy.crossings(*phases)
    said = [value for name, value in answer["numbers"].items() if name.startswith("crossing ")]
    np.testing.assert_allclose(said, crossings, rtol=1e-12)


@pytest.mark.parametrize("quantity", ["energies", "difference", "weights"])
def test_free_energies_of_the_cusp(quantity):
    law = {"split": 0.8, "tilt": 0.05, "free": 3}
    answer = EXPLORERS["free_energies"].answer(model="cusp", quantity=quantity, **law)
    curves = [np.array(curve["y"]) for curve in answer["curves"]]
    for i in (0, 20, 69):
        n = answer["curves"][0]["x"][i]
        left, right = (posterior_integrals.cusp(side, n, **law).free_energy for side in ("left", "right"))
        share = 1 / (1 + math.exp(right - left))
        wanted = {"energies": (left, right), "difference": (right - left, 0), "weights": (1 - share, share)}[quantity]
        np.testing.assert_allclose([curve[i] for curve in curves], wanted, **NEAR)
    line = posterior_integrals.cusp_line(100.0, split=0.8, free=3)
    assert answer["numbers"]["tilt of equal shares at n = 100"] == pytest.approx(line, rel=1e-12)


def test_equal_phases_cross_nowhere():
    same = {"gap": 0, "simple": 2, "rich": 2, "simple_m": 1, "rich_m": 1, "constant": 0}
    assert EXPLORERS["free_energies"].answer(**same)["numbers"] == {"crossing": "at no n"}
