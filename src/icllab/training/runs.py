"""What training returns: trained members, what became of each, their losses, and how it was done."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icllab.core.errors import expected
from icllab.training.ensembles import Ensemble
from icllab.training.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        members: The trained predictors, on one leading axis.
        dataset: ``training_loss`` with axes member, step and position: at step ``t``, the loss on that step's own
            prompts after ``t`` updates, NaN after a member has ended. ``held_out_loss`` and its error, if asked for.
            ``status`` and ``ended`` for each member; ``ended`` is the number of updates it made.
        header: How it was run: mode, member block, generator, versions, device, threads, times. In the dataset's
            attributes as JSON too.
        trajectory: Parameters at the steps asked for with ``Record(keep=...)``.
    """

    members: Ensemble
    dataset: "xr.Dataset"
    header: Mapping[str, Any]
    trajectory: Trajectory

    @property
    def status(self) -> tuple[str, ...]:
        """``ok``, ``stopped`` (a rule was met) or ``diverged``, for each member."""
        return tuple(str(one) for one in self.dataset["status"].values)

    @property
    def size(self) -> int:
        """How many members."""
        return self.members.size

    def member(self, index: int) -> Any:
        """One trained predictor; of a diverged member, with the last parameters that were sound."""
        return self.members.member(index)

    @property
    def predictor(self) -> Any:
        """The trained predictor of a run of one member."""
        if self.size != 1:
            raise expected("run", "one member", self.size, "run.member(i) is one of them")
        return self.member(0)
