"""JAX's checker of key reuse, over each call of the library.

A test may pass one key to two calls, since it asks whether they agree. Within one call of the library a key is consumed
at most once. A key is therefore fresh at every call that comes from a test, and what a test itself consumes is free.
"""

import sys
from pathlib import Path

import jax
from jax.experimental.key_reuse import _core

Keys = type(jax.random.key(0))
TESTS, LIBRARY = str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")


def _outermost_call():
    """The frame of the library that a test has called; None where a test is nearer than the library."""
    frame, outermost = sys._getframe(2), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(LIBRARY):
            outermost = frame
        elif name.startswith(TESTS):
            break
        frame = frame.f_back
    return outermost


def _refresh(keys, call):
    """Let keys that another call has consumed count as fresh."""
    for key in keys:
        if isinstance(key, Keys) and getattr(key, "_call", None) is not call:
            key._consumed, key._call = False, call  # the frame is held, so that no other has its address


def watch():
    """Raise ``KeyReuseError`` in every call of the library that consumes a key twice."""
    signature = _core.KeyReuseSignature
    check, update = signature.check_signature, signature.update_consumption

    def check_signature(self, *arguments, **options):
        if (call := _outermost_call()) is not None:
            _refresh(arguments, call)
            check(self, *arguments, **options)

    def update_consumption(self, arguments, results):
        if (call := _outermost_call()) is not None:
            update(self, arguments, results)
            for key in results:
                if isinstance(key, Keys):
                    key._call = call

    signature.check_signature, signature.update_consumption = check_signature, update_consumption
    jax.config.update("jax_debug_key_reuse", True)
