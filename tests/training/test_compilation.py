"""Compiled programs are found again by a later process, in a folder that others cannot write."""

import os
import stat
import subprocess
import sys

import pytest

from icllab.core.errors import EnvironmentFault
from icllab.training import cache_compilations, compile_quickly
from icllab.training.compilation import default_cache

PROGRAM = """
import icllab, jax
counts = {"misses": 0, "hits": 0}
def listen(event, **_):
    for name in counts:
        counts[name] += event.endswith(f"compilation_cache/cache_{name}")
jax.monitoring.register_event_listener(listen)
icllab.cache_compilations()
jax.jit(lambda x: x * 2 + 1)(3.0)
print(counts["misses"], counts["hits"])
"""


def started(home):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables |= {"XDG_CACHE_HOME": str(home), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


def test_a_second_process_compiles_nothing(tmp_path):
    misses, hits = started(tmp_path)
    assert (misses > 0, hits) == (True, 0)
    assert started(tmp_path) == [0, misses]


@pytest.fixture
def _restored():
    """The cache of the suite itself, afterwards."""
    before = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    yield
    if before:
        cache_compilations(before)


@pytest.mark.usefixtures("_restored")
def test_the_users_own_folder_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache_compilations()
    assert path == default_cache()
    assert path.is_relative_to(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o777)
    with pytest.raises(EnvironmentFault, match="expected a folder that only its owner may write"):
        cache_compilations()


@pytest.mark.usefixtures("_restored")
def test_a_named_folder_is_made(tmp_path):
    assert cache_compilations(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_quick_compilation_keeps_the_users_own_flags(monkeypatch):
    own = "--xla_cpu_use_fusion_emitters=true --xla_force_host_platform_device_count=2"
    monkeypatch.setenv("XLA_FLAGS", own)
    monkeypatch.setattr("icllab.training.compilation.version", lambda _: "0.10.2")  # XLA has read its flags by now
    for _ in range(2):
        compile_quickly()
        assert os.environ["XLA_FLAGS"] == f"{own} --xla_cpu_parallel_codegen_split_count=1"


def test_quick_compilation_gives_no_flag_to_a_version_that_may_not_know_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("icllab.training.compilation.version", lambda _: "0.11.0")
    compile_quickly()
    assert os.environ["XLA_FLAGS"] == ""
