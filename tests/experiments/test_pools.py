"""A worker keeps to its share of the cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

THREADS = """
import json, sys
from pathlib import Path
from icllab.experiments import pools

pools._live_as_worker(int(sys.argv[1]))
import jax.numpy as jnp
jnp.ones(8).sum().block_until_ready()
names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
print(json.dumps(sum("XLAEigen" in name for name in names)))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are named on Linux")
@pytest.mark.parametrize("share", [1, 3])
def test_xla_has_as_many_threads_as_the_worker_has_cores(share):
    """Whatever the machine has: a loop that XLA cuts in parts for other threads waits for them."""
    alone = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    command = [sys.executable, "-c", THREADS, str(share)]
    done = subprocess.run(command, env={**alone, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == share
