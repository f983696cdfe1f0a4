"""The records of a run and their steps: log-spaced losses, parameters, and losses on held-out prompts."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from icllab.core.errors import expected
from icllab.core.prompt import Prompt
from icllab.training.streams import set_size


@dataclass(frozen=True)
class Record:
    """Settings of a run's records and of its progress bar. None of them changes the training.

    Attributes:
        losses: Steps at which losses are recorded. 16: 16 log-spaced steps in each factor of ten, and step 0;
            ``"every"`` step; or a sequence of steps. A longer run has the same steps and more. The last step is always
            recorded.
        keep: Numbers of updates after which parameters are kept, as ``run.trajectory``.
        held_out: Prompts, stacked on a leading axis, on which the loss is recorded too, without training on them; or
            their number, drawn from each member's task. 0: none.
        progress: Whether the progress is shown; None: on a terminal and in a notebook. The argument ``progress`` of
            :func:`icllab.fit <icllab.training.fitting.fit>` is the same.
    """

    losses: int | str | Iterable[int] = 16
    keep: Iterable[int] = ()
    held_out: Prompt | int = 0
    progress: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", _losses(self.losses))
        object.__setattr__(self, "keep", _steps("keep", self.keep))
        if not isinstance(self.held_out, int | np.integer):
            if set_size("held_out", self.held_out) < 1:
                raise expected("held_out", "at least one prompt", 0)
        elif isinstance(self.held_out, bool) or self.held_out < 0:
            raise expected("held_out", "prompts, or a number >= 0", self.held_out)
        if not isinstance(self.progress, bool | None):
            raise expected("progress", "True, False or None", self.progress)

    @property
    def shared(self) -> Prompt | None:
        """The held-out prompts that all members share; None if each member has its own, or if there are none."""
        return None if isinstance(self.held_out, int | np.integer) else self.held_out

    def require_within(self, steps: int) -> None:
        """Raise if parameters are to be kept after more than ``steps`` updates; warn if losses are."""
        if any(step > steps for step in self.keep):
            raise expected("keep", f"steps from 0 to {steps}", list(self.keep))
        beyond = [step for step in self.losses if step > steps] if isinstance(self.losses, tuple) else []
        if beyond:
            warnings.warn(
                f"record: expected steps from 0 to {steps}, got {beyond[:3]}; these are not recorded", stacklevel=3
            )

    def due(self, steps: int) -> list[int]:
        """Steps before ``steps`` whose losses are recorded."""
        if isinstance(self.losses, str):
            return list(range(steps))
        if isinstance(self.losses, int):
            count = int(self.losses * np.log10(max(steps, 1))) + 1
            due = {0, *(round(10 ** (k / self.losses)) for k in range(count))}
        else:
            due = set(self.losses)
        return sorted(step for step in due if step < steps)


def _losses(losses: Any) -> int | str | tuple[int, ...]:
    """Validate the steps at which losses are recorded."""
    if not isinstance(losses, str | bool | int | np.integer):
        return _steps("record", losses)
    if losses == "every":
        return "every"
    if isinstance(losses, str | bool) or losses < 1:
        raise expected("record", "a number of steps per factor of ten, 'every', or steps", losses)
    return int(losses)


def _steps(name: str, steps: Any) -> tuple[int, ...]:
    """Distinct steps of a sequence, in ascending order."""
    if not isinstance(steps, Iterable):
        raise expected(name, "a sequence of steps", steps)
    numbers = tuple(steps)
    if any(isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0 for step in numbers):
        raise expected(name, "steps >= 0", list(numbers)[:3])
    return tuple(sorted({int(step) for step in numbers}))


class History:
    """Losses recorded so far.

    Attributes:
        shape: Numbers of members and positions.
        rows: Name -> step -> losses [member, position]. The names are ``losses`` (on a step's own prompts),
            ``held_out`` and ``held_out_error`` (its standard error).
        final: Losses of members that have ended, at their last step.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.rows: dict[str, dict[int, np.ndarray]] = {"losses": {}, "held_out": {}, "held_out_error": {}}
        self.final = np.full(shape, np.nan)

    def arrays(self) -> dict[str, np.ndarray]:
        """The history as arrays by name, for a checkpoint."""
        arrays: dict[str, np.ndarray] = {"final": self.final}
        for name, rows in self.rows.items():
            arrays[f"{name}.step"] = np.asarray(sorted(rows), np.int64)
            arrays[f"{name}.value"] = np.asarray([rows[step] for step in sorted(rows)]).reshape(len(rows), *self.shape)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "History":
        """The inverse of :meth:`arrays`."""
        members, positions = arrays["final"].shape
        history = cls((members, positions))
        history.final = arrays["final"]
        for name, rows in history.rows.items():
            rows.update(zip(arrays[f"{name}.step"].tolist(), arrays[f"{name}.value"], strict=True))
        return history

    def table(self, name: str, steps: list[int], last: np.ndarray) -> Float[np.ndarray, "member step position"]:
        """The rows at ``steps``, with ``last`` as the last of them; NaN where no losses were recorded."""
        rows, missing = self.rows[name] | {steps[-1]: last}, np.full(self.shape, np.nan)
        return np.stack([rows.get(step, missing) for step in steps], axis=1)
