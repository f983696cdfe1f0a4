"""Every test runs with shapes and types checked, no silent promotion, and warnings as errors."""

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import threading
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Claims that a developer has added are no test's.
os.environ["ICLLAB_CONFIG"] = str(Path(__file__).parent / "tests" / "none")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin beside XLA's
# One thread for XLA as well: there are as many test processes as cores. And LAPACK of jaxlib 0.10 waits for threads of
# the pool that it runs on: as many batches of matrices at once as there are threads wait for ever (docs/cluster.md).
os.environ.setdefault("NPROC", "1")

from jaxtyping import install_import_hook

# Not as a context: rooms are imported when first used, and the hook must still be there then.
install_import_hook(["icllab", "iclbook"], "typechecking.checked")
if os.environ.get("ICLLAB_KEY_REUSE") == "1":
    from key_reuse import watch

    watch()

import jax  # noqa: E402
import pytest  # noqa: E402

from icllab.core.errors import EnvironmentFault  # noqa: E402
from icllab.lab import provenance  # noqa: E402
from icllab.training import cache_compilations, compile_quickly  # noqa: E402

# Most of the suite's time is compilation, of programs that run for milliseconds.
compile_quickly()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


LOWERINGS = 200  # a context keeps the types and constants of all programs lowered in it


def _lower_in_shared_contexts():
    """Let programs share MLIR contexts: JAX makes one for each, of 4 ms and 1 MB, and holds it with the program."""
    from jax._src.interpreters import mlir

    new, here = mlir.make_ir_context, threading.local()

    def shared():
        if getattr(here, "left", 0) == 0:
            here.context, here.left = new(), LOWERINGS
        here.left -= 1
        return here.context

    mlir.make_ir_context = shared


if jax.__version__.startswith("0.10."):  # a private name of JAX
    _lower_in_shared_contexts()

# A record refuses results of code that is not committed; the suite runs before a commit too.
commit = provenance.commit
provenance.commit = functools.wraps(commit)(lambda *folder: commit(*folder).removesuffix("+changes"))

# Tracing makes many small objects that live on; looking through them again and again takes a tenth of the time.
gc.set_threshold(200_000, 20, 100)


def pytest_collection_modifyitems(items):
    """A warning of a result is data, and tests read it there; every other warning is an error."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::icllab.core.errors.ResultWarning"), append=False)


def pytest_collection_finish():
    """Nor are modules and tests garbage: a full collection takes a second with them."""
    gc.collect()
    gc.freeze()


# Compiled programs are kept for the next run of the suite, where there is a place for them.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ and os.environ.get("JAX_ENABLE_COMPILATION_CACHE") != "false":
    with contextlib.suppress(EnvironmentFault):
        cache_compilations()

STATE, MAPPINGS = Path("/proc/self/statm"), Path("/proc/self/maps")
LARGEST = 1100 * 2**20  # bytes
MOST = 25_000  # Linux allows a process 65530 mappings, and every program holds some
EVERY, TURNS = 20, itertools.count(1)  # tests from one count of mappings to the next: it takes 10 ms and more


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Compiled programs go when they take too much memory; those needed again are read from the disk."""
    yield
    if not STATE.exists():
        return
    full = int(STATE.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > LARGEST
    if full or (next(TURNS) % EVERY == 0 and MAPPINGS.read_bytes().count(b"\n") > MOST):
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # what is free goes back to the system (glibc)
            ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture
def getkey():
    """A function that returns a new random key at every call, the same ones in every run."""
    count = itertools.count()
    return lambda: jax.random.fold_in(jax.random.key(20240517), next(count))


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """Run the test in both floating-point types."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
