"""The tables that ship: complete records, registered theories, and what single theories state."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import planted

from icllab.arena import fresh, registry, score_theories
from icllab.core import sources
from icllab.core.errors import InputError
from icllab.lab import records
from icllab.theory import descent, rotated_covariances

SCRIPT = Path(__file__).parents[3] / "bench" / "arena.py"


@pytest.mark.parametrize("table", registry.tables())
def test_every_theory_has_a_score(table):
    phenomenon, dataset = registry.phenomenon(table), registry.record(table)
    assert np.isfinite(dataset["value"]).all()
    assert (dataset["value"] > 0).all()
    assert set(np.unique(dataset["censored"])) <= {0.0, 1.0}
    assert all(sources.reference(key) for key in phenomenon.sources)
    rows = score_theories(table)
    assert [row.theory for row in rows if row.refused] == []
    assert all(row.late == phenomenon.published for row in rows)
    assert len({row.title for row in rows}) == len(rows)
    assert sum(row.null for row in rows) == 3


def test_registrations_of_a_table_are_those_of_when_it_was_measured():
    """All values of the other tables had been published."""
    for table in registry.tables():
        file = registry.folder(table) / "theories" / "registered.json"
        kept = registry.record(table).attrs.get("registered.json", "")
        assert kept == hashlib.sha256(file.read_bytes()).hexdigest() * (table == "induction_head")
        assert set(json.loads(file.read_text())) == set(registry.theories(table))
        assert file.stat().st_size < 12_000


def test_the_fresh_part_has_what_the_theories_predict_and_none_of_the_cells():
    file = registry.folder("induction_head") / fresh.SHIPPED
    part = fresh.read(file)
    key = int(part.attrs["key"])
    assert fresh.path("induction_head", key) == file != fresh.path("induction_head", key + 1)
    again = fresh.predicted("induction_head", key)
    assert part["theory"].values.tolist() == again["theory"].values.tolist()
    for name in ("location", "scale", "never", *registry.phenomenon("induction_head").conditions):
        np.testing.assert_allclose(part[name], again[name], rtol=1e-3, atol=1e-3)
    rows = fresh.scores(part)
    assert {row.theory for row in rows} == set(registry.theories("induction_head"))
    assert not any(row.late for row in rows)


def test_times_of_censored_training_are_its_end():
    dataset = registry.record("induction_head")
    censored = dataset["censored"].values == 1
    assert (dataset["value"].values[censored] == 2000).all()
    assert (dataset["value"].values[~censored] < 2000).all()
    assert 0.02 < censored.mean() < 0.6


def test_errors_of_depth_are_those_of_the_claim_at_another_key():
    table, recorded = registry.record("depth_error"), records.data("descent/depth_needs_rotation", "small")["test_loss"]
    assert table["value"].size == recorded.size
    kinds = {(0.0, 0.0): "fixed", (1.0, 0.0): "rotated", (1.0, 1.0): "rotated, one matrix"}
    for i, cell in enumerate(registry.phenomenon("depth_error").cells):
        setting = kinds[cell["rotates"], cell["shared"]]
        same = recorded.sel(dim=cell["dim"], layers=cell["layers"], alpha=cell["alpha"], setting=setting)
        np.testing.assert_allclose(np.log(table["value"].values[i]).mean(), np.log(same.values).mean(), atol=0.5)


@pytest.mark.slow
def test_depth_is_measured_by_training_networks_as_the_claim_does():
    cell = {"dim": 6.0, "layers": 1.0, "alpha": 24.0, "rotates": 1.0, "shared": 0.0}
    (one, censored), (other, _) = registry.measure("depth_error")(cell, [1, 2])
    assert not censored
    np.testing.assert_allclose([one, other], 0.383, atol=0.02)
    assert one != other


def test_weights_and_gaps_are_those_of_the_claim():
    dataset, recorded = registry.record("task_threshold"), records.data("asymptotics/odds_of_memorising", "small")
    gaps = recorded["loss_gap"].sel(setting="urns").mean("seed")
    np.testing.assert_allclose(dataset["gap"].values, gaps.sel(tasks=dataset["tasks"]).values, atol=5e-5)
    i = registry.phenomenon("task_threshold").cells.index({"tasks": 16.0, "steps": 800.0, "gap": 0.0777})
    at = recorded.sel(setting="urns", tasks=16, step=800, test_set="pool")
    near, far = (at["strategy_distance"].sel(predictor=name) for name in ("memorising", "generalising"))
    expected = (1 + (far - near) / at["strategy_gap"]) / 2
    np.testing.assert_allclose(dataset["value"].values[i], expected.values)


def test_weights_of_theories_are_half_at_their_thresholds():
    cell = {"tasks": 16.0, "steps": 800.0, "gap": 0.08}
    law = {"boundary": [np.log(800) - 2 * np.log(16), 2.0, 0.3], "race": [np.log(50.0), np.log(800.0), 0.0]}
    assert location("task_threshold", "boundary", {"odds": law["boundary"], "scale": 1.0}, **cell) == np.log(0.5)
    raced = location("task_threshold", "race", {"odds": law["race"], "scale": 1.0}, **cell)
    np.testing.assert_allclose(raced, np.log(1.08 / 2.08))  # both have a loss of 1, and generalising the gap more
    numbers = {"threshold": np.log(16), "width": 0.5, "scale": 1.0}
    assert location("task_threshold", "fixed_threshold", numbers, **cell) == np.log(0.5)
    assert location("task_threshold", "fixed_threshold", numbers, **cell | {"tasks": 64.0}) < np.log(0.1)
    numbers = {"odds": [0.0, 0.0, np.log(487.2 / 0.08)], "scale": 1.0}  # gap and evidence are equal
    np.testing.assert_allclose(location("task_threshold", "pool_evidence", numbers, **cell), np.log(0.5), atol=0.1)


def test_the_evidence_of_a_pool_is_that_of_its_mixture():
    """By the gradient of the mixture's likelihood, which autodiff has; its slope by ln N is Kd/2, or less."""
    module = registry.theories("task_threshold")["pool_evidence"].predict.__globals__
    evidence, steps = module["EVIDENCE"], np.array(module["STEPS"])
    rng, values = np.random.default_rng(0), []

    def likelihood(logits, counts):
        return jax.nn.logsumexp(jax.nn.log_softmax(logits) @ counts) - jnp.log(2.0)

    gradients = jax.jit(jax.vmap(jax.grad(likelihood), (None, 0)))
    for _ in range(8):
        urns = rng.dirichlet(np.ones(8), 2)
        counts = rng.multinomial(32, urns[rng.integers(2, size=1500)])
        rows = np.asarray(gradients(jnp.log(urns), jnp.asarray(counts, jnp.float32)), float).reshape(len(counts), -1)
        values.append(np.linalg.slogdet(np.eye(16) + 64 * 50 * rows.T @ rows / len(rows))[1] / 2)
    error = np.hypot(np.std(values, ddof=1) / 8**0.5, 0.7)  # that of the table is 0.7
    assert abs(np.mean(values) - evidence[2][0]) < 3 * error < 4
    slopes = {urns: np.diff(row) / np.diff(np.log(steps)) / (3.5 * urns) for urns, row in evidence.items()}
    np.testing.assert_allclose(slopes[2], 1.0, atol=0.02)
    assert all((np.diff(slope) > -0.03).all() and slope.min() > 0.9 and slope.max() < 1.02 for slope in slopes.values())
    assert slopes[128][0] < 0.95


def location(table, theory, numbers, **conditions):
    """The location that a theory predicts of one cell."""
    row = registry.record(table).isel(cell=[0])
    row = row.assign_coords({name: ("cell", [float(value)]) for name, value in conditions.items()})
    (m,), _, _ = registry.theories(table)[theory].predict(numbers, row).arrays(1)
    return float(m[0])


def test_theories_of_the_induction_head_state_their_laws():
    table, at = "induction_head", {"pairs": 4, "batch": 32, "dim": 23, "start": 1.0, "classes": 64, "zipf": 0.0}

    def ratio(theory, numbers, **changes):
        numbers = {"constant": 0.0, "scale": 1.0, **numbers}
        return np.exp(location(table, theory, numbers, **at | changes) - location(table, theory, numbers, **at))

    assert np.isclose(ratio("quadratic_length", {}, pairs=8), (17 / 9) ** 2)
    assert np.isclose(ratio("tokens", {}, batch=128), 1 / 2)
    assert np.isclose(ratio("tokens", {}, pairs=8), (9 / 17) ** 0.5)
    steps = np.exp(location(table, "tokens_as_published", {"scale": 1.0}, **at))
    assert np.isclose(steps * 32 * 9, 10**5.7 * (32 * 9) ** 0.5)  # tokens
    powers = {"length": 2.0, "dim": 0.5, "repetition": -1.0}
    assert np.isclose(ratio("sparse_attention", powers, pairs=8, dim=92), (17 / 9) ** 2 * 2)
    assert np.isclose(ratio("sparse_attention", powers, classes=256), 4.0)
    assert ratio("sparse_attention", powers, zipf=1.0) < 0.3
    assert np.isclose(ratio("saddle_escape", {"kappa": 3.0}, start=0.5), 1 + 2 * np.log(2) / 3)
    h4, h8 = 3 / 5 / (4 * 9), 7 / 9 / (8 * 17)  # (N - 1) y / N(2N + 1) with y = 1/(N + 1)
    assert np.isclose(ratio("saddle_escape", {"kappa": 3.0}, pairs=8), h4 / h8)
    assert ratio("landscape_flow", {"factor": 0.5}, start=0.5) > 1 > ratio("landscape_flow", {"factor": 0.5}, start=2.0)


def test_a_race_is_lost_with_few_classes():
    theory, row = registry.theories("induction_head")["race"], registry.record("induction_head").isel(cell=[0, 0, 0])
    numbers = {"time": 7.0, "scale": 0.5, "threshold": np.log(256) - np.log(4) / 0.7, "width": 0.5}
    row = row.assign_coords(pairs=("cell", [4.0] * 3), classes=("cell", [64.0, 256.0, 1024.0]))
    _, _, never = theory.predict(numbers, row).arrays(3)
    np.testing.assert_allclose(never[:, 0], [16 / 17, 1 / 2, 1 / 17])


def test_theories_of_depth_state_their_errors():
    table, at = "depth_error", {"dim": 6, "layers": 2, "alpha": 4.0}
    limit = rotated_covariances.free_steps(np.ones(1), alpha=4.0, layers=2).loss
    numbers = {"scale": 1.0, "correction": 0.6}
    fixed, rotates = {"rotates": 0, "shared": 0}, {"rotates": 1, "shared": 0}
    assert np.isclose(location(table, "isotropic_limit", numbers, **at, **rotates), np.log(limit))
    assert np.isclose(location(table, "rotated_limit", numbers, **at, **fixed), np.log(limit))
    assert location(table, "rotated_limit", numbers, **at, **rotates) > np.log(limit) + 1
    assert np.isclose(location(table, "corrected_limit", numbers, **at, **fixed), np.log(limit) + 0.1)
    exact = descent.free_steps(dim=6, length=24, layers=2).loss / 6
    assert np.isclose(location(table, "best_steps", numbers, **at, **fixed), np.log(exact))
    assert np.isclose(location(table, "equal_contractions", numbers, **at, **fixed), 2 * np.log(7 / 31))


MEASURE = """
import numpy as np

def measure(cell, seeds):
    return [(float(np.exp(2 + 1.5 * np.cos(0.8 * cell["x"]) + 0.3 * np.sin(seed))), False) for seed in seeds]
"""


@pytest.fixture
def bench(monkeypatch):
    """``bench/arena.py`` as a function of its arguments."""
    spec = importlib.util.spec_from_file_location("bench_arena", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "cache_compilations", lambda: None)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["arena.py", *map(str, words)])
        return module.main()

    return run


def test_held_out_cells_are_measured_only_after_registration(tmp_path, bench):
    table, own = planted.table(tmp_path / "planted"), tmp_path / "mine"
    few = planted.PHENOMENON.replace("range(1, 9)", "range(1, 4)").replace("held_out=14", "held_out=5")
    (table / "phenomenon.py").write_text(few)
    (table / "measure.py").write_text(MEASURE)
    own.mkdir()
    (own / "mine.py").write_text(planted.THEORY.format(name="x"))
    assert bench(table, "--seconds", "-1") == 3
    assert bench(table) == 0
    assert np.isfinite(registry.record(table)["value"]).all("seed").sum() == 10
    with pytest.raises(InputError, match="--held-out: expected theories that are registered, these are not: along_x"):
        bench(table, "--held-out")
    registry.register(table)
    with pytest.raises(InputError, match=r"these are not: mine$"):
        bench(table, "--held-out", "--theories", own)
    registry.register(table, own)
    (table / "theories" / "along_y.py").write_text(planted.THEORY.format(name="x"))
    with pytest.raises(InputError, match=r"these are not: along_y$"):
        bench(table, "--held-out", "--theories", own)
    (table / "theories" / "along_y.py").write_text(planted.THEORY.format(name="y") + "# changed\n")
    assert bench(table, "--held-out", "--theories", own) == 0
    assert {(row.refused, row.late) for row in score_theories(table, own)} == {("", False)}


@pytest.mark.parametrize("measured", [0, 1, 14])
def test_a_theory_registered_after_one_held_out_cell_is_late(measured, tmp_path):
    table = planted.table(tmp_path / "planted")
    planted.measure(table, held_out=False)
    dataset, held_out = registry.record(table), np.flatnonzero(registry.phenomenon(table).is_held_out)
    dataset["value"].values[held_out[:measured]] = 2.0
    registry.save(table, dataset)
    registry.register(table)
    planted.measure(table, held_out=True)
    assert {(row.refused, row.late) for row in score_theories(table)} == {("", measured > 0)}


def test_theories_of_a_published_table_are_late(tmp_path):
    table = planted.table(tmp_path / "planted", ("x",))
    text = planted.PHENOMENON.replace("key=3", "key=3, published=True")
    (table / "phenomenon.py").write_text(text)
    planted.measure(table, held_out=False)
    registry.register(table)
    planted.measure(table, held_out=True)
    assert {(row.refused, row.late) for row in score_theories(table)} == {("", True)}
    (table / "theories" / "later.py").write_text(planted.THEORY.format(name="y"))
    assert registry.register(table) == ["later"]
    assert [path.name for path in table.glob("theories/*.json")] == ["registered.json"]
    assert {(row.refused, row.late) for row in score_theories(table)} == {("", True)}
