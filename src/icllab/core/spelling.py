"""Text of numbers: for JSON, which lacks infinities and NaN, and for people, with standard errors.

And any text for a terminal, in which a control character would act.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")
"""C0, DEL, C1, bidirectional overrides and isolates, line separators, and undecodable bytes that are C1."""


def printable(text: object, keep: str = "") -> str:
    r"""Text safe for a terminal: control characters except those in ``keep`` become escapes such as ``\x1b``."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], str(text))


def strict(value: Any) -> Any:
    """Plain values that JSON can hold; infinities and NaN become ``"inf"``, ``"-inf"``, ``"nan"``."""
    if hasattr(value, "tolist"):  # a NumPy number or array
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def number(value: float) -> str:
    """A number with four significant digits; ``inf`` and ``nan`` as text."""
    return f"{value:.4g}"


def with_error(value: float, error: float) -> str:
    """``0.1234 ± 0.0012``: two digits of the error, and the value to the same decimal."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{number(value)} ± {number(error)}"
    if error == 0:
        return f"{value:.6g}"
    place = 1 - math.floor(math.log10(abs(error)))
    if not (0 <= place <= 6 and abs(value) < 1e6):
        return f"{value:.4g} ± {error:.2g}"
    return f"{value:.{place}f} ± {error:.{place}f}"
