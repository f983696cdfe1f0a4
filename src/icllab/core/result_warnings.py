"""Warnings of results, also issued as Python warnings: each once, at the line of the user's call.

A result carries sentences about itself, in ``attrs["warnings"]`` of a Dataset. A function with :func:`warns` issues
them when it returns to its user. A diagnostic that is called by another one, or inside of a claim, issues none: the
result of its caller carries what matters.
"""

import contextlib
import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from icllab.core.errors import ResultWarning

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _State(threading.local):
    """Depth of nested results, and the title and issued warnings of the outermost result."""

    depth = 0
    title = ""
    issued: frozenset[str] = frozenset()


_state = _State()


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Issue no warnings inside the block; the results carry them."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


def warns(
    title: str, number: str = "estimate", error: str = "mcse"
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function to issue the warnings of its result, together with the number that they concern.

    Args:
        title: Name of the quantity.
        number: Variable of the Dataset with the number.
        error: Variable with its error.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if not _state.depth:
                _state.title, _state.issued = title, frozenset()
            with collected():
                result = function(*args, **kwargs)
            if not _state.depth:
                texts = [text for text in sentences(result) if text not in _state.issued]
                warn(texts, f"{title} {spelled(result, number, error)}".rstrip())
            return result

        return wrapped

    return decorate


def warn_at_once(text: str) -> None:
    """Issue a warning of the outermost result before the result is complete, and not again at the end."""
    if _state.depth == 1 and text not in _state.issued:
        _state.issued |= {text}
        _issue([text], _state.title)


def warn(texts: Iterable[str], subject: str) -> None:
    """Issue a :class:`~icllab.core.errors.ResultWarning` for each text, at the line of the user's call."""
    if not _state.depth:
        _issue(texts, subject)


def _issue(texts: Iterable[str], subject: str) -> None:
    frame = _users_frame()
    for text in texts:
        # No registry: a cell of a notebook that is run again warns again.
        warnings.warn_explicit(
            f"{subject}: {text}",
            ResultWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=None,
        )


def sentences(result: Any) -> list[str]:
    """Warnings that a Dataset, draws or a map carries."""
    texts = result.attrs.get("warnings", ()) if hasattr(result, "attrs") else getattr(result, "warnings", ())
    texts = texts() if callable(texts) else texts
    return [text for text in ([texts] if isinstance(texts, str) else texts) if text]


def spelled(result: Any, number: str, error: str) -> str:
    """The number of a Dataset with its error, the range of several numbers, or nothing."""
    if number not in getattr(result, "data_vars", ()):
        return ""
    values = result[number].values
    if values.ndim:
        finite = sorted(value for value in values.ravel().tolist() if math.isfinite(value))
        return f"from {finite[0]:.3g} to {finite[-1]:.3g}" if finite else ""
    return f"{float(values):.3g}" + (f" ± {float(result[error]):.1g}" if error in result else "")


def _users_frame() -> FrameType:
    """The first frame outside this package and the decorators around its functions."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame


def _is_internal(module: str) -> bool:
    return module.split(".")[0] in ("icllab", "contextlib", "functools", "jaxtyping", "beartype")
