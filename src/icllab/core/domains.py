"""Domains of numbers: the values that a parameter, a field or an axis may have, and the error for other values."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from icllab.core.errors import InputError, expected

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Domain:
    """An interval of the integers or of the real numbers. NaN lies in no domain, infinity only if ``infinite``.

    Attributes:
        kind: ``int`` or ``float``.
        least: Smallest value.
        above: Open lower end.
        most: Largest value.
        below: Open upper end.
        infinite: Whether an infinite value within the bounds belongs to the domain.
        text: Description in error messages; derived from the bounds if empty.
        hint: Advice at the end of error messages.
    """

    kind: type[int] | type[float] = float
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    infinite: bool = False
    text: str = ""
    hint: str = ""

    @property
    def description(self) -> str:
        """The domain in words, as error messages state it."""
        if self.text:
            return self.text
        noun = "an integer" if self.kind is int else "a number"
        if self.least is not None and self.most is not None:
            return f"{noun} from {_digits(self.least)} to {_digits(self.most)}"
        if self.above is not None and self.below is not None:
            return f"{noun} between {_digits(self.above)} and {_digits(self.below)}"
        if self.kind is int and self.least is not None:
            return f"{noun} of at least {_digits(self.least)}"
        noun = noun if self.kind is int or self.infinite else "a finite number"
        bounds = {">=": self.least, ">": self.above, "<=": self.most, "<": self.below}
        limits = " and ".join(f"{sign} {_digits(bound)}" for sign, bound in bounds.items() if bound is not None)
        return f"{noun} {limits}".rstrip()

    def holds(self, values: Any) -> Any:
        """True for each of the real numbers ``values``, one or an array, that belongs to the domain."""
        inside = values == values if self.infinite else abs(values) < math.inf
        if self.kind is int:
            inside = inside & (values % 1 == 0)
        if self.least is not None:
            inside = inside & (values >= self.least)
        if self.above is not None:
            inside = inside & (values > self.above)
        if self.most is not None:
            inside = inside & (values <= self.most)
        if self.below is not None:
            inside = inside & (values < self.below)
        return inside

    def refusal(self, name: str, value: object, hint: str = "") -> InputError:
        """The error for a ``value`` outside of the domain."""
        return expected(name, self.description, value, "; ".join(filter(None, (hint, self.hint))))

    def require(self, name: str, value: Any, hint: str = "") -> None:
        """Raise unless ``value`` is a number of the domain; True, "3" and arrays are not, and 3.0 is not an integer."""
        if not self.holds(_as_float(value)) or (self.kind is int and not isinstance(value, Integral)):
            raise self.refusal(name, value, hint)

    def require_scalar(self, name: str, value: Any) -> None:
        """Raise unless ``value`` is a number of the domain, an array of shape () with one, or traced."""
        import jax
        import numpy as np
        from jax.core import Tracer

        if isinstance(value, jax.Array | np.ndarray):
            real = jax.numpy.issubdtype(value.dtype, np.floating) or jax.numpy.issubdtype(value.dtype, np.integer)
            if value.ndim or not real:
                raise self.refusal(name, f"{value.dtype.name} of shape {value.shape}")
            if isinstance(value, Tracer):
                return
            value = value.item()
        self.require(name, value)

    def require_leaf(self, name: str, value: Any, hint: str = "", *, axes: int = 0) -> None:
        """Raise unless the array ``value`` of a field has at most ``axes`` axes and numbers of the domain.

        A traced value passes, and so does what stands for an array in a tree, such as None.
        """
        import jax
        import numpy as np
        from jax.core import Tracer

        if isinstance(value, jax.Array) and not isinstance(value, Tracer):
            numbers = np.asarray(value)
            if numbers.ndim > axes:
                hint = hint or "use jax.vmap to make an ensemble from an array"
            elif np.all(self.holds(numbers)):
                return
            raise self.refusal(name, numbers.tolist() if numbers.size < 8 else f"shape {numbers.shape}", hint)

    def read(self, name: str, value: object) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Read numbers of the domain, in any form that NumPy accepts, as an array of float64.

        Raises:
            InputError: A value is no real number or lies outside of the domain. The message names the parameter, the
                first such value and its place.
        """
        import numpy as np

        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            raise expected(name, f"{self.description}, or a rectangular array of these", value) from None
        if array.dtype.kind in "iuf":
            numbers = array.astype(np.float64)
        else:  # Python's large integers and fractions come as objects, and so does everything that is no number
            numbers = np.array([_as_float(x) for x in array.ravel().tolist()], np.float64).reshape(array.shape)
        outside = ~self.holds(numbers)
        if outside.any():
            index = tuple(int(i) for i in np.argwhere(outside)[0])
            offender = array[index]
            offender = offender.item() if isinstance(offender, np.generic) else offender
            raise self.refusal(name, offender, f"element {list(index)} of shape {array.shape}" if index else "")
        return numbers


def _digits(bound: float) -> str:
    return str(bound) if isinstance(bound, Integral) else f"{bound:g}"


def _as_float(value: object) -> float:
    """A real number as a float; NaN, which lies in no domain, for anything else (bool, complex, text, too large)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


FINITE = Domain()
POSITIVE = Domain(above=0)
POSITIVE_OR_INF = Domain(above=0, infinite=True, text="a number > 0 (inf is allowed)")
NON_NEGATIVE = Domain(least=0)
NON_NEGATIVE_OR_INF = Domain(least=0, infinite=True)
FRACTION = Domain(least=0, most=1)
PROPER_FRACTION = Domain(above=0, below=1)
