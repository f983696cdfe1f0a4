"""A function within another keeps its own checks, though they are made once for all that look alike."""

import numpy as np
import pytest
import typechecking
from jaxtyping import Float, TypeCheckError, jaxtyped


def _shortened(kind, most="n"):
    """A function defined anew at every call, whose annotations depend on the call."""

    @jaxtyped(typechecker=typechecking.checked)
    def shortened(values: Float[np.ndarray, "n"], by: kind) -> Float[np.ndarray, most]:
        return values[: len(values) - int(by)]

    return shortened


def test_definitions_of_one_signature_are_all_checked():
    for shortened in (_shortened(int), _shortened(int)):
        assert shortened(np.ones(3), 0).shape == (3,)
        for wrong in ((np.ones(3), "0"), (np.ones((3, 3)), 0), (np.ones(3), 1)):
            with pytest.raises(TypeCheckError):
                shortened(*wrong)


def test_another_type_or_shape_is_another_check():
    _shortened(int)
    assert _shortened(str)(np.ones(3), "0").shape == (3,)
    with pytest.raises(TypeCheckError):
        _shortened(str)(np.ones(3), 0)
    assert _shortened(int, "m")(np.ones(3), 1).shape == (2,)


def test_checks_of_one_signature_are_made_once():
    before = len(typechecking._inner)
    for _ in range(3):
        _shortened(float)
    assert len(typechecking._inner) <= before + 2  # of the arguments, and of the result
