"""The checks that all other tests rely on are switched on."""

import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.prompt import RegressionPrompt


def test_a_wrong_shape_is_refused():
    with pytest.raises(Exception, match="position"):
        RegressionPrompt(x=jnp.zeros((3, 2)), y=jnp.zeros(4))


def test_silent_rank_and_type_promotion_are_refused():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
    with pytest.raises(Exception, match="promotion"):
        jnp.ones(2, jnp.float32) + jnp.asarray(np.ones(2, np.int32))
