"""Parameters are counted by hand, and the width for a number of them is the largest that fits."""

import jax
import pytest

from icllab.core.errors import InputError
from icllab.models import BlockOptions, Interleaved, Transformer, parameter_count, width_for
from icllab.models.networks.dense import Perceptron


def perceptron(width):
    return Perceptron(3, (width,), 1, nonlinearity="relu", key=jax.random.key(0))


def test_the_count_of_a_transformer():
    """Embedding; queries, keys, values, output; two layer norms; two affine maps; last norm; readout."""
    model = Transformer(
        Interleaved(),
        dim=3,
        width=8,
        layers=2,
        block=BlockOptions(heads=2, mlp=(16,), norm="pre"),
        positions="learned",
        length=5,
        key=jax.random.key(0),
    )
    block = 4 * 8 * 8 + 2 * 2 * 8 + (8 * 16 + 16) + (16 * 8 + 8)
    assert parameter_count(model) == (4 * 8 + 8) + 11 * 8 + 2 * block + 2 * 8 + (8 + 1)


@pytest.mark.parametrize("parameters", [6, 10, 11, 500])
def test_the_largest_width_that_fits(parameters):
    """A hidden unit has 3 + 1 + 1 parameters, the output one."""
    assert width_for(perceptron, parameters) == (parameters - 1) // 5


def test_too_few_parameters_are_refused():
    with pytest.raises(InputError, match="parameters: expected at least 6, the number at width 1, got 5"):
        width_for(perceptron, 5)
