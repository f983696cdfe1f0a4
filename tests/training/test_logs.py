"""A log has every recorded loss once, in order of steps, of a finished run and of one that goes on."""

import shutil
import sys
import threading
import types

import jax
import numpy as np
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.files import DamagedFile
from icllab.training import CheckpointStore, Following, Record, TensorBoard, WeightsAndBiases, log

SGD = optax.sgd(0.05)


class Kept:
    """A log that keeps what it is told, and may fail."""

    def __init__(self, failing=False):
        self.rows, self.closed, self.failing, self.told = [], 0, failing, threading.Event()

    def write(self, step, values):
        if self.failing:
            raise OSError("no dashboard")
        self.rows.append((step, values))
        self.told.set()

    def close(self):
        self.closed += 1


def trained(store=None, steps=6):
    """Two members, held-out losses, every step."""
    members = icl.ensemble(slope, seeds=(0, 1), key=jax.random.key(0))
    record = Record("every", held_out=prompts(5, seed=1))
    how = {"data": prompts(9), "key": jax.random.key(1), "batch": 4, "optimizer": SGD, "record": record}
    return icl.fit(members, task(), steps=steps, store=store, **how)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "a"
    return trained(CheckpointStore(root, seconds=0)), root


def wanted(run):
    losses = {name: run.dataset[name].mean("position") for name in ("training_loss", "held_out_loss")}
    return [
        (
            step,
            {f"{name}/{m}": float(v.sel(step=step).values[m]) for name, v in losses.items() for m in range(run.size)},
        )
        for step in run.dataset["step"].values.tolist()
    ]


def same(rows, others):
    assert [step for step, _ in rows] == [step for step, _ in others]
    for (_, values), (_, known) in zip(rows, others, strict=True):
        assert values.keys() == known.keys()
        np.testing.assert_allclose(list(values.values()), list(known.values()), rtol=1e-6)


def test_a_finished_run_and_its_store_are_logged_alike(finished):
    run, root = finished
    for one in (run, root, str(root)):
        kept = Kept()
        assert log(one, kept) == 6
        same(kept.rows, wanted(run))
        assert kept.closed == 0
    later = Kept()
    assert log(run, later, after=3) == 6
    same(later.rows, wanted(run)[4:])
    assert log(run, later, after=6) == 6


def test_a_run_that_goes_on_is_logged_up_to_its_last_step(finished, tmp_path):
    """Of a checkpoint only the steps before it: what is recorded at the step itself is not all there yet."""
    run, root = finished
    store = tmp_path / "under way"
    store.mkdir()
    before, newest = sorted(root.glob("checkpoint-*.icl"))
    (store / before.name).write_bytes(before.read_bytes())
    stands, kept = int(before.stem.rpartition("-")[2]), Kept()
    assert log(store, kept) == stands - 1  # where it stands, the held-out loss is there and the training loss is not
    same(kept.rows, wanted(run)[:stands])
    (store / newest.name).write_bytes(newest.read_bytes())
    kept = Kept()
    assert log(store, kept) == 5
    same(kept.rows, wanted(run)[:-1])
    (store / f"checkpoint-{7:012d}.icl").write_bytes(b"half a file")
    again = Kept()
    assert log(store, again) == 5
    assert again.rows == kept.rows
    assert log(tmp_path / "none", Kept()) == -1


def test_a_member_that_has_ended_is_not_logged(finished):
    run, _ = finished
    dataset = run.dataset.copy(deep=True)
    dataset["training_loss"][1, 3:] = np.nan
    kept = Kept()
    log(type(run)(run.members, dataset, run.header, run.trajectory), kept)
    assert ["training_loss/1" in values for _, values in kept.rows] == [True] * 3 + [False] * 4


def test_following_logs_while_the_run_goes_on_and_each_step_once(finished, tmp_path):
    run, root = finished
    store, kept = tmp_path / "runs" / "a", Kept()
    with Following(store, kept, seconds=0.01):
        store.mkdir(parents=True)
        newest = max(root.glob("checkpoint-*.icl"))
        (store / newest.name).write_bytes(newest.read_bytes())
        assert kept.told.wait(30)
        assert not kept.closed
        (store / "finished.icl").write_bytes((root / "finished.icl").read_bytes())
    same(kept.rows, wanted(run))
    assert kept.closed == 1


def test_a_log_that_fails_does_not_end_the_run(finished):
    _, root = finished
    kept, ran = Kept(failing=True), []
    with pytest.raises(OSError, match="no dashboard"), Following(root, kept, seconds=0.01):
        ran.append(True)
    assert ran
    assert kept.closed == 1
    with pytest.raises(ValueError, match="the run's own"), Following(root, Kept(failing=True)):
        raise ValueError("the run's own")


def test_what_is_no_log_is_refused(finished):
    run, root = finished
    with pytest.raises(InputError, match="to: expected a log, with methods write and close, got 'list'"):
        log(run, [])
    with pytest.raises(InputError, match="to: expected a log"):
        Following(root, "logs")
    with pytest.raises(InputError, match="seconds: expected a positive number, got 0"):
        Following(root, Kept(), seconds=0)


def test_tensorboard_is_told_scalars(finished, monkeypatch):
    run, _ = finished
    told = []

    class SummaryWriter:
        def __init__(self, folder):
            told.append(folder)

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    to = TensorBoard("logs")
    log(run, to)
    to.close()
    assert told[0] == "logs"
    assert told[-1] == "closed"
    assert len(told) == 2 + 7 * 4
    step, values = wanted(run)[0]
    assert ("training_loss/0", pytest.approx(values["training_loss/0"], rel=1e-6), step) in told


def test_weights_and_biases_is_offline(finished, monkeypatch):
    run, _ = finished
    told = []
    theirs = types.SimpleNamespace(
        log=lambda values, step: told.append((step, values)), finish=lambda: told.append("closed")
    )
    wandb = types.SimpleNamespace(init=lambda **how: (told.append(how), theirs)[1])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    to = WeightsAndBiases("icl", "logs")
    log(run, to)
    to.close()
    assert told[0] == {"project": "icl", "dir": "logs", "name": None, "mode": "offline"}
    assert told[-1] == "closed"
    same(told[1:-1], wanted(run))
    with pytest.raises(InputError, match="mode: expected 'offline' or 'online'"):
        WeightsAndBiases("icl", "logs", mode="on")


@pytest.fixture
def wandb(monkeypatch):
    """Runs by identifier: the arguments of each start and the steps that were logged."""
    runs = {}

    def init(**arguments):
        run = runs.setdefault(arguments.get("id"), types.SimpleNamespace(starts=[], steps=[], ends=0))
        run.starts.append(arguments)
        run.log = lambda values, step: run.steps.append(step)
        run.finish = lambda: setattr(run, "ends", run.ends + 1)
        return run

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return runs


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_stopped_run_goes_on_as_the_same_run_of_weights_and_biases(wandb, tmp_path, mode):
    """Its identifier is in the store; another folder of files is another start of the same run."""
    store = tmp_path / "runs" / "a"
    for steps, folder in ((3, "logs"), (6, "other logs")):
        with Following(store, WeightsAndBiases("icl", folder, mode=mode), seconds=60):
            trained(store, steps)
    ((identifier, run),) = wandb.items()
    assert [start["dir"] for start in run.starts] == ["logs", "other logs"]
    for start in run.starts:
        assert (start["id"], start["resume"], start["mode"], start["project"]) == (identifier, "allow", mode, "icl")
    assert run.steps == [0, 1, 2, 3, 4, 5, 6]
    assert run.ends == 2
    log(store, WeightsAndBiases("icl", "logs"))
    assert run.steps == [0, 1, 2, 3, 4, 5, 6]
    log(store, WeightsAndBiases("another project", "logs"))
    assert run.steps[7:] == [0, 1, 2, 3, 4, 5, 6]
    with Following(tmp_path / "b", WeightsAndBiases("icl", "logs"), seconds=60):
        pass
    assert len(wandb) == 2  # another store is another run


def test_steps_that_the_server_has_are_not_sent_again(finished, wandb, tmp_path):
    """A kill between sending and noting: the server says where its run stands."""
    store = copied(finished[1], tmp_path)
    log(store, WeightsAndBiases("icl", "logs"))
    (run,) = wandb.values()
    (store / "logs.json").write_text(f'{{"id": "{run.starts[0]["id"]}"}}')
    run.starting_step, run.steps = 5, []
    log(store, WeightsAndBiases("icl", "logs"))
    assert run.steps == [5, 6]


def copied(root, to):
    return shutil.copytree(root, to / "store", ignore=shutil.ignore_patterns("logs.json"))


def test_a_log_that_failed_has_the_steps_before(finished, wandb, tmp_path):
    store, failing = copied(finished[1], tmp_path), WeightsAndBiases("icl", "logs")
    failing.write(0, {})  # begins a run of no store
    to = WeightsAndBiases("icl", "logs")
    write, to.write = to.write, lambda step, values: write(step, values) if step < 3 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        log(store, to)
    log(store, WeightsAndBiases("icl", "logs"))
    assert [run.steps for name, run in wandb.items() if name] == [[0, 1, 2, 3, 4, 5, 6]]


def test_tensorboard_goes_on_in_its_folder_and_is_complete_in_another(finished, monkeypatch, tmp_path):
    store, told = copied(finished[1], tmp_path), []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, step):
            told.append((self.folder, name, step))

        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    last = store / f"checkpoint-{6:012d}.icl"
    content = last.read_bytes()
    last.unlink()
    (store / "finished.icl").rename(tmp_path / "finished.icl")
    for finished_too in (False, True):
        with Following(store, TensorBoard(str(tmp_path / "logs")), seconds=60):
            last.write_bytes(content)
            if finished_too:
                (tmp_path / "finished.icl").rename(store / "finished.icl")
    assert len(told) == len(set(told)) == 7 * 4
    told.clear()
    log(store, TensorBoard(str(tmp_path / "logs")))
    assert not told
    shutil.move(store, tmp_path / "moved")
    log(tmp_path / "moved", TensorBoard(str(tmp_path / "logs")))
    assert not told  # it is the same run
    shutil.rmtree(tmp_path / "logs")
    log(tmp_path / "moved", TensorBoard(str(tmp_path / "logs")))
    assert len(told) == 7 * 4  # what was removed is written again


def test_a_damaged_note_is_told(finished, wandb, tmp_path):
    store = copied(finished[1], tmp_path)
    (store / "logs.json").write_text("[1")
    with pytest.raises(DamagedFile, match=r"logs.json: expected the steps of a log as JSON"):
        log(store, WeightsAndBiases("icl", "logs"))


def test_without_their_packages_one_line_says_what_brings_them(monkeypatch):
    for name in ("wandb", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentFault, match="needs wandb; `pip install wandb` installs it"):
        WeightsAndBiases("icl", "logs")
    with pytest.raises(EnvironmentFault, match="`pip install tensorboardX`"):
        TensorBoard("logs")
