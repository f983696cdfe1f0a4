"""Where and how precisely a claim is measured is a choice that is never made in silence."""

import json
import secrets
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from faults.processes import CLAIM, CLAIMS, cells, environment, results, run_command

import icllab as icl
from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import placement, recording, registry
from icllab.lab.placement import Placement, distributed, measured_in_blocks, placed
from icllab.training import compilation

TOO_MUCH = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")


def run(out, **how):
    return icl.run(CLAIM, "small", out=out, claims=CLAIMS, **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"device": "GPU 1"},
            "device: expected a platform, or one and a number, got 'GPU 1'; cpu, gpu and cuda:1 are some",
        ),
        ({"precision": "float46"}, "unknown precision 'float46'; did you mean 'float64'?"),
    ],
)
def test_what_is_no_placement_is_refused(how, message):
    with pytest.raises(InputError) as caught:
        Placement(**how)
    assert str(caught.value) == message


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_what_is_inside_is_computed_in_the_precision(precision):
    with placed("cpu:0", precision):
        assert jnp.ones(2).dtype == precision
        assert jax.config.jax_default_device == jax.devices("cpu")[0]
    assert jnp.ones(2).dtype == "float32"
    assert jax.config.jax_default_device is None


def test_a_device_that_does_not_round_to_bfloat16_is_refused(monkeypatch):
    """On a processor the products would be those of float32, under another name."""
    with pytest.raises(InputError, match="precision: expected a precision of this device, got 'bfloat16'"):
        placed(None, "bfloat16").__enter__()
    monkeypatch.setattr(placement, "_rounds", lambda: True)
    with placed(None, "bfloat16"):
        assert jax.config.jax_default_matmul_precision == "BF16_BF16_F32"
        assert jnp.ones(2).dtype == "float32"


@pytest.mark.parametrize("name", ["cpu:1", "abacus"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name):
    with pytest.raises(InputError, match=f"device: expected one of cpu:0, got '{name}'"):
        placed(name, "float32").__enter__()


def test_another_precision_is_in_the_results_and_makes_no_record(tmp_path, monkeypatch):
    """A store of one precision takes no other, a reading says which it was, and a record is of the claim's own."""
    other = run(tmp_path, placement=Placement("cpu", "float64"))
    assert other.attrs["precision"] == "float64"
    assert json.loads(other.attrs["configuration"])["precision"] == "float64"
    verdict = icl.check(CLAIM, "small", out=tmp_path, claims=CLAIMS)
    assert verdict.notes == ("measured in float64; the claim is about float32, and a record is of that alone",)
    with pytest.raises(InputError, match="precision is 'float64' there and 'float32' here"):
        run(tmp_path)
    with pytest.raises(InputError, match=r"record: expected results of small, got .*precision is 'float64' there"):
        recording.write(registry.load(CLAIM, CLAIMS), "small", None, other, CLAIMS)


def of_seeds(block):
    """A measurement that takes the memory of three seeds at most, and has one value for all."""
    if len(block["seed"]) > 3:
        raise TOO_MUCH
    seeds = np.array(block["seed"])
    return {"loss": (("tau", "seed"), np.stack([seeds, 10 * seeds])), "bound": (("tau",), np.array([1.0, np.nan]))}


def test_halves_put_together_are_the_whole():
    values, together = measured_in_blocks(of_seeds, {"tau": (0, 1), "seed": (5, 3, 8, 1, 9, 2, 4)})
    np.testing.assert_array_equal(values["loss"][1], [[5, 3, 8, 1, 9, 2, 4], [50, 30, 80, 10, 90, 20, 40]])
    np.testing.assert_array_equal(values["bound"][1], [1.0, np.nan])
    assert values["loss"][0] == ("tau", "seed")
    assert together == 3  # of seven three and four, and of these two and two
    assert measured_in_blocks(of_seeds, {"tau": (0, 1), "seed": (5, 3, 8)})[1] == 3


def test_halves_that_differ_by_rounding_are_the_whole():
    def rounded(block):
        theory = np.float32(1.0) + np.float32(1e-7) * len(block["seed"])
        return of_seeds(block) | {"theory": ((), theory)}

    named, _ = measured_in_blocks(rounded, {"tau": (0, 1), "seed": (5, 3, 8, 1, 9, 2, 4)})
    np.testing.assert_allclose(named["theory"][1], 1.0, rtol=1e-6)


def test_where_halves_are_not_the_whole_there_is_no_result():
    def pooled(block):
        return {"loss": ((), np.mean(of_seeds(block)["loss"][1]))}

    def any_memory(block):
        raise TOO_MUCH

    def other(block):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    block = {"tau": (0, 1), "seed": (1, 2, 3, 4)}
    with pytest.raises(EnvironmentFault, match=r"loss: expected an axis seed, .* got none; try another --device"):
        measured_in_blocks(pooled, block)
    with pytest.raises(
        EnvironmentFault, match="device: expected memory for one seed at a time, got RESOURCE_EXHAUSTED"
    ):
        measured_in_blocks(any_memory, block)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        measured_in_blocks(other, block)


def test_a_run_that_is_out_of_memory_says_how_many_seeds_it_measured_at_once(tmp_path, monkeypatch):
    axes = {"dim": [2, 4]}
    whole = run(tmp_path / "whole", axes=axes)
    monkeypatch.setenv("STEADY_FAULT", "memory:2")
    found = run(tmp_path / "found", axes=axes)
    assert found["icl_error"].values.tobytes() == whole["icl_error"].values.tobytes()
    assert (found.attrs["seeds_at_once"], whole.attrs.get("seeds_at_once")) == ("2", None)
    verdict = icl.check(CLAIM, "small", out=tmp_path / "found", claims=CLAIMS)
    assert verdict.notes == ("a device was out of memory: seeds of a cell were measured 2 at a time",)


@pytest.mark.parametrize(
    ("variable", "value", "reason", "more"),
    [
        ("XLA_FLAGS", "--xla_{}=1", "Unknown flag", []),
        pytest.param(
            *("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=maybe", "Couldn't interpret value maybe", []),
            marks=pytest.mark.slow,
        ),
        ("JAX_PLATFORMS", "cuda", "no device of that platform", []),
        pytest.param("JAX_PLATFORMS", "cuda", "no device of that platform", ["--workers", "2"], marks=pytest.mark.slow),
    ],
)
def test_settings_under_which_jax_does_not_start_are_one_line_before_any_cell(variable, value, reason, more, tmp_path):
    value = value.format(secrets.token_hex(4))
    done = subprocess.run(
        run_command(tmp_path, *more), env=environment() | {variable: value}, capture_output=True, text=True
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 4
    assert line.startswith(f"icl: {variable}={value}" if variable == "JAX_PLATFORMS" else "icl: ")
    assert value in line
    assert reason in line
    assert not tmp_path.joinpath("claims").exists()


def test_flags_of_the_library_itself_start_no_child(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: pytest.fail("a child was started"))
    flags = [
        "--xla_force_host_platform_device_count=2",
        "--xla_cpu_multi_thread_eigen=false",
        *compilation.quick_flags(),
    ]
    monkeypatch.setenv("XLA_FLAGS", " ".join(flags))
    for platforms in ("", "cpu"):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        placement.require_start(children=True)


@pytest.mark.parametrize("where", ["somewhere", "localhost:1234,2", "localhost:1234,2,2", "localhost,2,0", ""])
def test_a_coordinator_is_an_address_and_two_numbers(where):
    with pytest.raises(InputError, match=r"distributed: expected auto, or HOST:PORT,N,I with I from 0 to N - 1, got"):
        distributed(where)


def test_jax_that_is_in_use_joins_no_one():
    jax.devices()
    with pytest.raises(InputError, match="distributed: expected to be called before JAX is first used"):
        distributed("127.0.0.1:1,2,0")


TWO = """
import sys
from icllab.cli import main

status = main(sys.argv[1:])
from jax.experimental import multihost_utils
import jax, jax.numpy as jnp
print(status, multihost_utils.process_allgather(jnp.array(jax.process_index())).tolist(), len(jax.devices()))
"""


@pytest.mark.slow
def test_two_processes_are_one_computation_and_share_the_cells(tmp_path):
    """Each has its own device; what they measure is what one alone does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log, out = tmp_path / "log", tmp_path / "out"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, *run_command(out, "--distributed", f"127.0.0.1:{port},2,{i}")[3:]],
            env=environment(STEADY_LOG=log, STEADY_FAULT="alone:2", STEADY_PAUSE=0.3),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [out.splitlines()[-1] for out, _ in said] == ["0 [0, 1] 2"] * 2, said
    assert len(cells(out)) == 5 <= len(log.read_text().splitlines()) < 10
    alone = run(tmp_path / "alone")
    together = results(out)
    assert together["icl_error"].values.tobytes() == alone["icl_error"].values.tobytes()
