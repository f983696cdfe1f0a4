"""The type checker of the tests: beartype, with an ``int`` where a ``float`` is asked for allowed (PEP 484)."""

import inspect

from beartype import BeartypeConf, beartype

_beartyped = beartype(conf=BeartypeConf(is_pep484_tower=True))
_inner = {}


def checked(function):
    """The checks of a function, which jaxtyping puts around another that does nothing but has the same signature.

    A function within another is defined anew at every call, and beartype takes milliseconds for its checks. They are
    made once for those of one name and signature.
    """
    signature = inspect.signature(function)
    defaults = any(one.default is not one.empty for one in signature.parameters.values())
    if "<locals>" not in function.__qualname__ or defaults:
        return _beartyped(function)
    key = function.__module__, function.__qualname__, str(signature)
    if key not in _inner:
        _inner[key] = _beartyped(function)
    return _inner[key]
