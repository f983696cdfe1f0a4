"""Definitions that every subpackage shares: prompts, protocols, domains, axes, grids, sources, errors.

It imports nothing of ours, and nothing before it is used: ``core.axes``, ``core.domains``, ``core.sources``,
``core.errors`` and ``core.grid``'s bookkeeping are free of JAX.
"""

from icllab.core.lazy import attach

__all__ = ["errors", "prompt", "protocols"]
__getattr__, __dir__ = attach(__name__)
