"""Ids outside of a vocabulary: refused where they are known, told from the others where they are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.vocabularies import are_ids, in_vocabulary


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_ids_are_told_from_other_numbers(dtype):
    ids = np.array([0, 4, 5, 100], dtype)
    np.testing.assert_array_equal(are_ids(ids, 5), [True, True, False, False])
    assert np.all(are_ids(ids, 256))  # which uint8 and int8 do not hold


def test_known_ids_outside_are_refused_with_their_place():
    with pytest.raises(InputError, match=r"tokens at \[1, 0\]: expected an id from 0 to 4, a vocabulary of 5, got -1;"):
        in_vocabulary("tokens", jnp.asarray([[0, 4], [-1, 5]]), 5, "mask")
    with pytest.raises(InputError, match=r"label at 1: .* got 5$"):
        in_vocabulary("label", np.array([4, 5]), 5)


def test_traced_ids_are_marked():
    ids = jnp.asarray([0, 5, -1])
    np.testing.assert_array_equal(jax.jit(lambda i: in_vocabulary("tokens", i, 5))(ids), [True, False, False])
