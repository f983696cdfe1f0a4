"""Questions put to any predictor: measurements that know a task and a predictor, and nothing else."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.lengths import per_length

__getattr__, __dir__, __all__ = attach(__name__, {"per_length": "lengths"}, modules=("lengths",))
