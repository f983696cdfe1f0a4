"""A finished run is opened as it was, without compiling; what does not fit is refused."""

import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from training.predictors import Slope, prompts, task
from training.test_checkpoints import assert_same, trained

import icllab as icl
from icllab.core.errors import InputError
from icllab.training import Record, TrainingInterrupted
from icllab.training.checkpoints import packed, unpacked
from icllab.training.train_loop import TrainingLoop


def start(dim=3):
    """Untrained members with other numbers than those that were trained."""
    return icl.ensemble(lambda *, key: Slope(np.full(dim, 7.0, np.float32)), seeds=2, key=jax.random.key(5))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    return root, trained(root, 12)


def test_it_is_the_run_that_was_finished_and_nothing_is_compiled(store):
    root, run = store
    like = start()
    compiled = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        opened = icl.load(root, like)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    assert_same(opened, run)
    assert opened.header == run.header
    assert opened.status == run.status
    np.testing.assert_array_equal(opened.member(1).w, run.member(1).w)
    np.testing.assert_array_equal(opened.trajectory.at(5).member(1).w, run.trajectory.at(5).member(1).w)


def test_each_kept_step_has_its_own_parameters(tmp_path):
    arguments = {"steps": 6, "batch": 4, "data": prompts(8), "key": jax.random.key(0), "record": Record(keep=[1, 3, 6])}
    run = icl.fit(start(), task(), **arguments, store=tmp_path)
    opened = icl.load(tmp_path, start())
    assert opened.trajectory.steps == run.trajectory.steps == (1, 3, 6)
    weights = [np.asarray(opened.trajectory.at(step).member(0).w) for step in opened.trajectory.steps]
    np.testing.assert_array_equal(weights, [run.trajectory.at(step).member(0).w for step in run.trajectory.steps])
    assert len(np.unique(weights, axis=0)) == 3


def test_a_single_predictor_is_an_ensemble_of_one(tmp_path):
    one = Slope(np.ones(3, np.float32))
    run = icl.fit(one, task(), steps=3, batch=4, data=prompts(8), key=jax.random.key(0), store=tmp_path)
    opened = icl.load(tmp_path, Slope(np.zeros(3, np.float32)))
    np.testing.assert_array_equal(opened.predictor.w, run.predictor.w)


def test_without_the_predictor_there_are_losses_and_no_members(store):
    root, run = store
    opened = icl.load(root)
    assert opened.dataset.equals(run.dataset)
    assert (opened.size, opened.status) == (2, run.status)
    with pytest.raises(InputError, match=r"members: expected a run opened with its predictor, .*icl.load\(store, pre"):
        opened.member(0)


def test_a_run_of_version_0_2_is_opened(store, tmp_path):
    """That version listed the variables, and wrote texts into the header."""
    root, run = store
    header, arrays = unpacked(root / "finished.icl")
    listed, written = {}, {name: array for name, array in arrays.items() if not name.startswith("dataset.")}
    for name, variable in run.dataset.variables.items():
        is_text = variable.dtype.kind == "U"
        listed[name] = [list(variable.dims), variable.values.tolist() if is_text else None, variable.dtype.str]
        written |= {} if is_text else {f"dataset.{name}": variable.values}
    del header["function"], header["options"]
    header |= {"dataset": listed, "coordinates": list(run.dataset.coords), "training": dict(run.header)}
    for file in root.glob("*.icl"):
        shutil.copy(file, tmp_path)
    (tmp_path / "finished.icl").write_bytes(packed(header, written))
    with pytest.warns(UserWarning, match=r"function of the predictor is not compared .* \(an older version wrote it\)"):
        opened = icl.load(tmp_path, start())
    assert_same(opened, run)
    xr.testing.assert_equal(opened.dataset, run.dataset)
    assert opened.header == run.header


def test_another_predictor_is_refused(store):
    root, _ = store
    with pytest.raises(InputError, match=r"members.w is 'float32\[3\]' there and 'float32\[4\]' here"):
        icl.load(root, start(dim=4))
    with pytest.raises(InputError, match=r"expected other arrays: members.w is 'float32"):
        icl.load(root, lambda prompt: prompt.y)


class Pooled(eqx.Module):
    """Its arrays do not say which function of them it is."""

    w: jax.Array
    pool: object = eqx.field(static=True)
    power: int = eqx.field(static=True, default=1)
    unused: str = eqx.field(static=True, default="")

    def __call__(self, prompt):
        return self.pool(prompt.x @ self.w) ** self.power


class Doubled(Pooled):
    def __call__(self, prompt):
        return 2 * super().__call__(prompt)


def pooled(pool=jnp.tanh, kind=Pooled, **fields):
    return kind(np.zeros(3, np.float32), pool, **fields)


@pytest.fixture(scope="module")
def pooled_store(tmp_path_factory):
    root = tmp_path_factory.mktemp("pooled")
    arguments = {"steps": 3, "batch": 4, "data": prompts(8), "key": jax.random.key(0), "store": root}
    record = Record(keep=[2])
    return root, icl.fit(pooled(lambda z: jnp.tanh(3 * z)), task(), record=record, **arguments)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: pooled(lambda z: jnp.tanh(4 * z)), "got another: look at pool; give the"),
        (lambda: pooled(jnp.sin), "got another: look at pool; give the"),
        (lambda: pooled(lambda z: jnp.tanh(3 * z), power=2), "got another: power is 1 there and 2 here; give the"),
        (lambda: pooled(lambda z: jnp.tanh(3 * z), Doubled), "predictor is 'Pooled' there and 'Doubled' here"),
    ],
)
def test_another_function_of_the_same_arrays_is_refused(pooled_store, other, message):
    with pytest.raises(InputError, match=message) as caught:
        icl.load(pooled_store[0], other())
    assert "\n" not in str(caught.value)
    members = icl.ensemble(lambda *, key: other(), seeds=1, key=jax.random.key(5))
    with pytest.raises(InputError, match=message):
        icl.load(pooled_store[0], members)


def test_the_same_function_is_not_refused(pooled_store):
    root, run = pooled_store
    opened = icl.load(root, pooled(lambda z: jnp.tanh(3 * z), unused="another name"))
    np.testing.assert_array_equal(opened.predictor.w, run.predictor.w)
    np.testing.assert_array_equal(opened.trajectory.at(2).member(0).w, run.trajectory.at(2).member(0).w)


def test_in_other_versions_options_are_compared(pooled_store, tmp_path, monkeypatch):
    """A program may read otherwise there and do the same: what cannot be compared is no reason to refuse."""
    shutil.copytree(pooled_store[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("icllab.training.checkpoints.environment", lambda: {"jax": "9.9", "threads": "1"})
    icl.load(tmp_path, pooled(lambda z: jnp.tanh(3 * z)))  # it reads the same
    with pytest.warns(
        UserWarning, match=r"is not compared with the one that was trained \(written elsewhere: .*jax is"
    ):
        icl.load(tmp_path, pooled(lambda z: jnp.tanh(3 * z + 0)))
    with pytest.raises(InputError, match="power is 1 there and 2 here"):
        icl.load(tmp_path, pooled(lambda z: jnp.tanh(3 * z), power=2))


def test_what_is_not_finished_is_not_opened(tmp_path):
    with pytest.raises(InputError, match=r"expected a finished training run, got 'none'; icl\.fit with this store"):
        icl.load(tmp_path)
    trained(tmp_path, 6)
    (tmp_path / "finished.icl").unlink()
    with pytest.raises(InputError, match="got 'a run that stopped after 6 steps'"):
        icl.load(tmp_path)


def test_a_longer_run_is_opened_at_its_new_end(tmp_path):
    trained(tmp_path, 6)
    longer = trained(tmp_path, 9)
    assert_same(icl.load(tmp_path, start()), longer)


def test_a_run_shows_itself_in_a_line(store):
    _, run = store
    assert repr(run).startswith("Run(members: 2, status: 2 ok, steps: 12, last training loss: ")
    assert len(repr(run)) < 200
    assert "<th>status</th><td>2 ok</td>" in run._repr_html_()


@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupt_ends_in_one_line_that_says_what_is_kept(tmp_path, monkeypatch, kept):
    look = TrainingLoop.look

    def stop(self, checkpoints):
        look(self, checkpoints)
        if self.step >= 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingLoop, "look", stop)
    with pytest.raises(TrainingInterrupted) as caught:
        trained(tmp_path if kept else None, 12)
    where = f"they are kept in {tmp_path}, the same call goes on" if kept else "nothing is kept; with store='DIR'"
    assert where in str(caught.value)
    assert "interrupted after 5 of 12 steps" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, KeyboardInterrupt)
    if kept:
        monkeypatch.undo()
        assert_same(trained(tmp_path, 12), trained(None, 12))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("where", "step"), [("advance", 0), ("evaluate", 12)])
def test_an_interrupt_of_the_compilation_and_after_the_last_step_is_the_same(tmp_path, monkeypatch, kept, where, step):
    monkeypatch.setattr(TrainingLoop, where, _interrupt)
    if where == "evaluate":
        monkeypatch.setattr(TrainingLoop, "look", lambda self, checkpoints: None)
    record = Record(held_out=prompts(2))
    with pytest.raises(TrainingInterrupted) as caught:
        trained(tmp_path if kept else None, 12, record=record)
    what = "they are kept in" if step else "nothing is kept yet, the same call starts again"
    what = what if kept else "nothing is kept; with store='DIR'"
    assert str(caught.value).startswith(f"icl.fit: interrupted after {step} of 12 steps; {what}")
    assert list(tmp_path.glob("checkpoint-*.icl")) == (
        [tmp_path / "checkpoint-000000000012.icl"] if kept and step else []
    )


def test_an_interrupt_of_the_compilation_leaves_what_is_stored(tmp_path, monkeypatch):
    trained(tmp_path, 5)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(TrainingLoop, "advance", _interrupt)
    with pytest.raises(TrainingInterrupted, match=r"after 5 of 12 .* are kept in"):
        trained(tmp_path, 12)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_same(trained(tmp_path, 12), trained(None, 12))


def test_an_interrupt_before_there_is_a_state(monkeypatch):
    monkeypatch.setattr(TrainingLoop, "__init__", _interrupt)
    with pytest.raises(TrainingInterrupted, match=r"icl\.fit: interrupted before it began; nothing is lost, the same"):
        trained(None, 12)


@pytest.mark.parametrize("where", ["ensemble_of", "require_prediction", "held_out_prompts"])
def test_an_interrupt_of_the_plan(monkeypatch, tmp_path, where):
    monkeypatch.setattr(f"icllab.training.fitting.{where}", _interrupt)
    with pytest.raises(TrainingInterrupted, match=r"icl\.fit: interrupted before it began; nothing is lost, the same"):
        trained(tmp_path, 12)
    assert not list(tmp_path.iterdir())


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_ensemble_of_another_size_is_refused(store, seeds):
    members = icl.ensemble(lambda *, key: Slope(np.zeros(3, np.float32)), seeds=seeds, key=jax.random.key(5))
    with pytest.raises(InputError) as caught:
        icl.load(store[0], members)
    assert str(caught.value) == f"predictor: expected the ensemble of the run, with 2 members, got {seeds}"
