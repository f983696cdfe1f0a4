"""Parameters on the way: whole ensembles of predictors at chosen steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import expected
from icllab.core.views import brief, html_fields, one_line
from icllab.training.ensembles import Ensemble


@dataclass(frozen=True, repr=False)
class Trajectory:
    """The trained arrays after so many updates, held on the host.

    Attributes:
        steps: Updates made, ascending.
        params: step -> trained arrays, each with a leading member axis, as NumPy.
        rest: What of the predictors is not trained.
        coordinates: What tells members apart, as in the ensemble.
    """

    steps: tuple[int, ...]
    params: Mapping[int, Any]
    rest: Any
    coordinates: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def at(self, step: int) -> Ensemble:
        """All members as they were after ``step`` updates."""
        if step not in self.params:
            raise expected("step", f"one of the kept steps {list(self.steps)}", step, "keep it: Record(keep=...)")
        params = jax.tree.map(jnp.asarray, self.params[step])
        return Ensemble(eqx.combine(params, self.rest), self.coordinates)

    def stacked(self, member: int = 0) -> Any:
        """One member's trained arrays at all kept steps, stacked on a leading axis, as NumPy."""
        rows = [jax.tree.map(lambda leaf: leaf[member], self.params[step]) for step in self.steps]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)

    def __repr__(self) -> str:
        return one_line("Trajectory", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Parameters at kept steps", self._summary())

    def _summary(self) -> dict[str, str]:
        steps = np.asarray(self.steps, np.int64)
        numbers = {"kept steps": str(len(self)), "steps": brief(steps) if len(steps) else "none"}
        return numbers | {name: brief(values) for name, values in self.coordinates.items()}
