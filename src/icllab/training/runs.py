"""The result of training: trained members, their status, losses and kept parameters, and a header."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from icllab.core.errors import expected
from icllab.core.views import brief, html_fields, one_line
from icllab.training.ensembles import Ensemble

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False)
class Trajectory:
    """The trained arrays at kept steps, on the host.

    Attributes:
        steps: Numbers of updates, ascending.
        params: step -> trained arrays, each with a leading member axis, as NumPy.
        rest: The parts of the predictors that are not trained.
        coordinates: Seed and swept numbers of the members, as in the ensemble.
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
        """All members after ``step`` updates."""
        if step not in self.params:
            raise expected(
                "step", f"one of the kept steps {list(self.steps)}", step, "keep that step with Record(keep=...)"
            )
        params = jax.tree.map(jax.device_put, self.params[step])
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


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training run.

    Attributes:
        members: The trained predictors, on one leading axis. A run opened without a predictor has their coordinates
            only.
        dataset: ``training_loss`` with axes member, step and position: at step ``t``, the loss on that step's own
            prompts after ``t`` updates, NaN after a member has ended. ``held_out_loss`` and its error, if recorded.
            ``status`` and ``ended`` for each member; ``ended`` is its number of updates.
        header: Mode, division over devices, generator, versions, device, threads, seconds. The dataset's attributes
            have it as JSON.
        trajectory: Parameters at the steps of ``Record(keep=...)``.
    """

    members: Ensemble
    dataset: "xr.Dataset"
    header: Mapping[str, Any]
    trajectory: Trajectory

    @property
    def status(self) -> tuple[str, ...]:
        """``ok``, ``stopped`` (a rule was met) or ``diverged``, for each member."""
        return tuple(map(str, self.dataset["status"].values))

    @property
    def size(self) -> int:
        """Number of members."""
        return self.members.size

    def member(self, index: int) -> Any:
        """One trained predictor; a diverged member has its last finite parameters."""
        return self.members.member(index)

    def __repr__(self) -> str:
        return one_line("Run", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Training run", self._summary())

    def _summary(self) -> dict[str, str]:
        counts = Counter(self.status)
        last = self.dataset["training_loss"].isel(step=-1).mean("position").values
        last = last[np.isfinite(last)]
        spread = f" to {last.max():.4g}" if last.size > 1 else ""
        return {
            "members": str(self.size),
            "status": ", ".join(f"{count} {status}" for status, count in counts.items()),
            "steps": str(int(self.dataset["ended"].max())),
            "last training loss": f"{last.min():.4g}{spread}" if last.size else "none",
            "seconds": f"{self.header['seconds']:.3g}" if "seconds" in self.header else "unknown",
        }

    @property
    def predictor(self) -> Any:
        """The trained predictor of a run of one member."""
        if self.size != 1:
            raise expected("run", "one member", self.size, "choose one with run.member(i)")
        return self.member(0)
