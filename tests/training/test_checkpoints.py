"""Checkpoints are read as written or not at all; a run goes on from the last sound one to the same bits."""

import json
import math
import shutil
from importlib.metadata import PackageNotFoundError, version

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.files import DamagedFile
from icllab.training import CheckpointStore, Fixed, Record, Sweep, checkpoints
from icllab.training.checkpoints import Checkpoints, named, packed, restored, unpacked

ADAM = optax.adam(1e-2)
MAP = Sweep(mode="map")
RECORD = Record(keep=[5], held_out=prompts(8, 1))


def trained(store, steps, **more):
    arguments = {"batch": 4, "optimizer": ADAM, "data": prompts(40), "sweep": MAP, "record": RECORD} | more
    start = icl.ensemble(slope, seeds=2, key=jax.random.key(0))
    return icl.fit(start, arguments.pop("task", task()), steps=steps, key=jax.random.key(1), store=store, **arguments)


def assert_same(run, other):
    for a, b in zip(jax.tree.leaves(run.members.stacked), jax.tree.leaves(other.members.stacked), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert run.dataset.equals(other.dataset)
    for name in run.dataset.variables:
        assert run.dataset[name].values.tobytes() == other.dataset[name].values.tobytes()
    assert run.trajectory.steps == other.trajectory.steps
    for step in run.trajectory:
        np.testing.assert_array_equal(run.trajectory.params[step].w, other.trajectory.params[step].w)


@pytest.fixture(scope="module")
def undisturbed():
    return trained(None, 60)


@pytest.fixture(scope="module")
def after_6(tmp_path_factory):
    """A store with one checkpoint, which no test changes."""
    store = tmp_path_factory.mktemp("after_6")
    trained(store, 6)
    return store


@pytest.fixture(scope="module")
def after_40(tmp_path_factory):
    """A store with checkpoints after 20 and 40 steps, which no test changes."""
    store = tmp_path_factory.mktemp("after_40")
    for steps in (20, 40):
        trained(store, steps)
    return store


def copied(store, to):
    return shutil.copytree(store, to, dirs_exist_ok=True)


@pytest.mark.parametrize("mode", ["map", "vmap"])
def test_a_run_in_pieces_is_the_run_in_one(tmp_path, mode):
    whole = trained(None, 60, sweep=Sweep(mode=mode))
    for steps in (6, 7, 23, 60):
        # What the header says is obeyed.
        run = trained(tmp_path, steps, sweep=Sweep(mode="auto" if steps > 6 else mode))
        assert run.header["mode"] == mode
    assert run.header["resumed_at"] == 23
    assert_same(run, whole)
    again = trained(tmp_path, 60, sweep=Sweep(mode=mode))
    assert again.header["resumed_at"] == 60
    assert_same(again, whole)


@pytest.mark.parametrize(
    "more",
    [
        {"data": None},
        pytest.param({"data": 11}, marks=pytest.mark.slow),
        {"data": Fixed(prompts(40), minibatches="replacement")},
        pytest.param({"data": prompts(3)}, marks=pytest.mark.slow),
    ],
)
def test_prompts_of_every_kind_go_on(tmp_path, more):
    whole = trained(None, 30, **more)
    trained(tmp_path, 7, **more)
    assert_same(trained(tmp_path, 30, **more), whole)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty"])
def test_the_checkpoint_before_a_damaged_one_is_used(tmp_path, after_40, undisturbed, damage):
    copied(after_40, tmp_path)
    last = tmp_path / "checkpoint-000000000040.icl"
    content = last.read_bytes()
    flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    last.write_bytes({"truncated": content[:-7], "flipped": flipped, "foreign": b"PK\x03\x04", "empty": b""}[damage])
    with pytest.warns(UserWarning, match="checkpoint-000000000040.icl: expected .*; the checkpoint before it is used"):
        run = trained(tmp_path, 60)
    assert run.header["resumed_at"] == 20
    assert_same(run, undisturbed)


def test_where_all_are_damaged_nothing_is_begun_over_them(tmp_path, after_6):
    copied(after_6, tmp_path)
    for path in tmp_path.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with (
        pytest.warns(UserWarning, match="checksum"),
        pytest.raises(DamagedFile, match="expected a sound checkpoint, got 1 damaged"),
    ):
        trained(tmp_path, 60)


def test_two_checkpoints_are_kept(tmp_path):
    for steps in (6, 10, 20, 30):
        trained(tmp_path, steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000000000020.icl",
        "checkpoint-000000000030.icl",
        "finished.icl",
        "kept-000000000005.icl",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 5}, "batch is 4 there and 5 here"),
        ({"optimizer": optax.adam(2e-2)}, "program is "),
        ({"optimizer": optax.sgd(1e-2)}, "program is "),
        ({"data": prompts(40, 3)}, "data is "),
        ({"task": task(name="timaeus")}, "task is "),
        ({"positions": "last"}, "positions is [0, 1, 2, 3, 4] there and [4] here"),
        ({"optimizer": optax.sgd, "sweep": {"optimizer.learning_rate": [0.1]}}, "members is "),
        ({"sweep": Sweep(mode="vmap")}, "mode: expected 'map', with which the run in "),
        ({"record": Record(keep=[3], held_out=prompts(8, 1))}, "keep: expected steps from 6 on"),
        ({"record": Record(keep=[5], held_out=prompts(8, 2))}, "held_out is "),
        ({"record": Record([5], keep=[5], held_out=prompts(8, 1))}, "record is 16 there and (5,) here"),
    ],
)
def test_another_run_is_refused_with_the_difference_shown(after_6, change, message):
    with pytest.raises(InputError) as caught:
        trained(after_6, 12, **change)
    assert message.split(" is ")[0] in str(caught.value)
    assert "; choose another store" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_version_0_1_goes_on_in_its_mode(after_6, undisturbed, tmp_path):
    """It has a mode, and neither how many members at once nor devices."""
    (path,) = copied(after_6, tmp_path).glob("checkpoint-*.icl")
    header, arrays = unpacked(path)
    header = {name: header[name] for name in ("configuration", "step", "versions")} | {"mode": header["way"]["mode"]}
    path.write_bytes(packed(header, arrays))
    run = trained(tmp_path, 60, sweep=Sweep())
    assert run.header["resumed_at"] == 6
    assert_same(run, undisturbed)


def test_fewer_steps_than_were_made_are_refused(after_40):
    with pytest.raises(InputError, match="expected a run of at most 6 steps, got a run of 40; give more steps"):
        trained(after_40, 6)


def test_a_file_comes_back_as_it_went(tmp_path, getkey):
    tree = {"a": jnp.arange(6, dtype=jnp.int32).reshape(2, 3), "k": getkey(), "e": jnp.zeros((0, 2)), "s": jnp.ones(())}
    path = tmp_path / "checkpoint-000000000003.icl"
    path.write_bytes(packed({"mode": "map"}, named(tree, "state")))
    header, arrays = unpacked(path)
    assert header == {"mode": "map", "schema": 1}
    back = restored(tree, "state", arrays, path)
    for name, leaf in named(tree, "").items():
        assert leaf.tobytes() == named(back, "")[name].tobytes()
    with pytest.raises(
        InputError, match=r"expected other arrays: state\['s'\] is 'float32\[\]' there and 'float32\[1\]' here"
    ):
        restored(tree | {"s": jnp.ones(1)}, "state", arrays, path)
    # A reader needs no code of ours for the header.
    assert json.loads(path.read_bytes().split(b"\n")[1])["arrays"][0]["shape"] == [2, 3]


INTEGERS = ["bool", *(f"{sign}int{size}" for sign in ("", "u") for size in (2, 4, 8, 16, 32, 64))]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float4_e2m1fn"]
EIGHTS = ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, *(f"float8_{kind}" for kind in EIGHTS)])
def test_numbers_of_every_type_come_back_to_the_bit(tmp_path, name):
    dtype = jnp.dtype(name)
    with jax.enable_x64(True):
        bits = np.random.default_rng(0).integers(0, 2, (2, 8 * dtype.itemsize)).astype(np.uint8)
        array = np.arange(2).astype(dtype) if dtype.name.startswith(("bool", "int", "uint", "float4")) else None
        array = np.packbits(bits, axis=1).view(dtype)[:, 0] if array is None else array
        tree, path = {"a": jnp.asarray(array)}, tmp_path / "a.icl"
        path.write_bytes(packed({}, named(tree, "state")))
        back = restored(tree, "state", unpacked(path)[1], path)["a"]
    assert back.dtype == dtype
    assert np.asarray(back).tobytes() == array.tobytes()


def test_an_array_is_written_as_before():
    """Files of version 0.2 name types as NumPy does."""
    arrays = {"a": np.zeros(1, np.float32), "b": np.asarray(["text"]), "c": np.zeros(1, bool), "d": np.zeros(1, "f2")}
    entries = json.loads(packed({}, arrays).split(b"\n")[1])["arrays"]
    assert [entry["dtype"] for entry in entries] == ["<f4", "<U4", "|b1", "<f2"]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("place", ["parameters", "optimiser", "prompts too"])
def test_a_run_in_half_precision_goes_on_to_the_same_bits(tmp_path, dtype, place):
    start = slope(key=jax.random.key(0))
    start = start if place == "optimiser" else jax.tree.map(lambda leaf: leaf.astype(dtype), start)
    data = prompts(9)
    if place == "prompts too":
        data = jax.tree.map(lambda leaf: leaf.astype(dtype), data)
    optimizer = optax.sgd(1e-2, momentum=0.9, accumulator_dtype=dtype)

    def ran(steps, store=None):
        arguments = {
            "optimizer": optimizer,
            "data": data,
            "batch": 4,
            "key": jax.random.key(1),
            "record": Record(keep=[2]),
        }
        with jax.numpy_dtype_promotion("standard"):
            return icl.fit(start, task(), steps=steps, store=store, **arguments)

    whole = ran(6)
    ran(3, tmp_path)
    assert_same(ran(6, tmp_path), whole)
    with jax.numpy_dtype_promotion("standard"):
        assert_same(icl.load(tmp_path, start), whole)


def test_another_version_goes_on_with_a_warning(tmp_path, undisturbed):
    trained(tmp_path, 20)
    path = tmp_path / "checkpoint-000000000020.icl"
    header, arrays = unpacked(path)
    header["versions"]["jax"] = "0.1"
    header["configuration"]["program"] = "another text"
    path.write_bytes(packed({k: v for k, v in header.items() if k != "schema"}, arrays))
    with pytest.warns(UserWarning, match=r"written elsewhere \(jax is '0.1' there .*not with the same bits"):
        assert_same(trained(tmp_path, 60), undisturbed)


def test_other_threads_are_no_reason_to_believe_another_program(tmp_path, after_6):
    """Threads and flags change bits, and not what a program is."""
    (path,) = copied(after_6, tmp_path).glob("checkpoint-*.icl")
    header, arrays = unpacked(path)
    header["versions"] |= {"threads": "97", "xla_flags": "--none"}
    path.write_bytes(packed(header, arrays))
    with pytest.raises(InputError, match="holds a run of another configuration: program is"):
        trained(tmp_path, 12, optimizer=optax.sgd(1e-2))
    with pytest.warns(UserWarning, match=r"written elsewhere \(threads is '97' there"):
        trained(tmp_path, 12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (lambda: jax.threefry_partitionable(False), "partitionable is True there and False here"),
        (lambda: jax.default_matmul_precision("float32"), "matmul_precision is 'default' there and 'highest' here"),
    ],
)
def test_a_run_under_other_settings_of_jax_is_not_resumed(setting, message, tmp_path, after_6):
    with setting(), pytest.raises(InputError, match=message):
        trained(after_6, 12)
    (path,) = copied(after_6, tmp_path).glob("checkpoint-*.icl")
    header, arrays = unpacked(path)
    for name in ("partitionable", "matmul_precision"):  # version 0.3 states neither
        del header["configuration"][name]
    path.write_bytes(packed(header, arrays))
    with setting(), pytest.raises(InputError, match=message):
        trained(tmp_path, 12)
    trained(tmp_path, 12)


class Halved(type(task())):
    """Another loss of the same arrays."""

    def loss(self, prediction, prompt):
        return super().loss(prediction, prompt) / 2


def test_options_name_another_loss_and_stand_for_it_in_other_versions(tmp_path, after_6):
    with pytest.raises(InputError, match="another configuration: task is 'LinearRegression' there and 'Halved' here"):
        trained(after_6, 12, task=task(kind=Halved))
    (path,) = copied(after_6, tmp_path).glob("checkpoint-*.icl")
    header, arrays = unpacked(path)
    header["versions"]["jax"] = "0.1"
    path.write_bytes(packed(header, arrays))
    with pytest.raises(InputError, match="another configuration: task is 'LinearRegression' there and 'Halved' here"):
        trained(tmp_path, 12, task=task(kind=Halved))
    del header["configuration"]["options"]  # as version 0.2 wrote it
    path.write_bytes(packed(header, arrays))
    with pytest.warns(UserWarning, match="written elsewhere"):
        trained(tmp_path, 12)


def test_checkpoints_are_no_nearer_than_asked(tmp_path, monkeypatch):
    """Every stretch of steps with no time between them; the last alone where it is infinite."""
    write, written = Checkpoints.write, []

    def seen(self, step, header, arrays):
        written.append(step)
        write(self, step, header, arrays)

    monkeypatch.setattr(Checkpoints, "write", seen)
    monkeypatch.setattr("icllab.training.train_loop.STRETCH_SECONDS", 0.0)  # a stretch is then a single step
    for seconds, wanted in ((0.0, [8, 9, 10]), (math.inf, [10])):
        written.clear()
        trained(CheckpointStore(tmp_path / str(seconds), seconds), 10, record=Record([], keep=[]))
        assert written == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": ""}, "store: expected a directory, got ''"),
        ({"path": "run", "seconds": -1.0}, "seconds: expected a number of seconds >= 0, got -1.0"),
        ({"path": "run", "seconds": math.nan}, "seconds: expected a number of seconds >= 0, got nan"),
    ],
)
def test_what_is_no_store_is_refused_in_one_line(fields, message):
    with pytest.raises(InputError) as caught:
        CheckpointStore(**fields)
    assert str(caught.value) == message


def test_another_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("icllab.training.checkpoints.SCHEMA", 2)
    path = tmp_path / "checkpoint-000000000001.icl"
    path.write_bytes(packed({}, {}))
    monkeypatch.undo()
    with pytest.raises(InputError, match="expected checkpoint schema 1, got 2"):
        Checkpoints(tmp_path, {}).latest()


def test_a_return_to_an_older_step_keeps_the_last_sound_checkpoint(tmp_path):
    """The damaged newer file is not what the sound older ones are removed for."""
    store = Checkpoints(tmp_path, {})
    for step in (10, 20, 30):
        store.write(step, {}, {"w": np.full(3, float(step))})
    assert store.steps() == [20, 30]
    store.path(30).write_bytes(store.path(30).read_bytes()[:-1] + b"!")
    store.write(25, {}, {"w": np.full(3, 25.0)})  # the run went on from 20
    assert store.steps() == [20, 25, 30]
    assert [unpacked(store.path(step))[1]["w"][0] for step in (20, 25)] == [20.0, 25.0]
    with pytest.raises(DamagedFile):
        unpacked(store.path(30))


def test_a_source_tree_that_is_no_distribution_has_an_unknown_version(monkeypatch):
    def missing(name):
        if name == "icl-lab":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(checkpoints, "version", missing)
    versions = checkpoints.environment()
    assert versions["icl-lab"] == "unknown"
    assert versions["jax"] == version("jax")
