"""Every test runs with shapes and types checked, no silent promotion, and warnings as errors."""

import itertools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin beside XLA's

from jaxtyping import install_import_hook

# Not as a context: rooms are imported when first used, and the hook must still be there then.
install_import_hook("icllab", "typechecking.checked")

import jax  # noqa: E402
import pytest  # noqa: E402

# Most of the suite's time is compilation, of programs that run for milliseconds. Claims switch it back.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


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
