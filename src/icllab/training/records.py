"""What is written down while training, and when: losses at log-spaced steps, parameters, losses on other prompts."""

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
    """What a run writes down on its way, and whether it shows how far it is. None of it changes the training.

    Attributes:
        losses: When losses are recorded. 16: so many log-spaced steps in each factor of ten, and step 0; ``"every"``
            step; or those given. A longer run has the same steps and more. The last step is always recorded.
        keep: Numbers of updates after which parameters are kept, as ``run.trajectory``.
        held_out: Prompts, stacked on a leading axis, on which the loss is recorded too, without training on them; or
            how many to draw for that from each member's task. 0: none.
        progress: Whether a bar is shown on stderr; None: if that is a terminal.
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
        """The held-out prompts that all members share; None where each has its own, or none."""
        return None if isinstance(self.held_out, int | np.integer) else self.held_out

    def require_within(self, steps: int) -> None:
        """Refuse parameters that are to be kept after more than ``steps`` updates; warn of losses after as many."""
        if any(step > steps for step in self.keep):
            raise expected("keep", f"steps from 0 to {steps}", list(self.keep))
        beyond = [step for step in self.losses if step > steps] if isinstance(self.losses, tuple) else []
        if beyond:
            warnings.warn(f"record: expected steps from 0 to {steps}, got {beyond[:3]}: not recorded", stacklevel=3)

    def due(self, steps: int) -> list[int]:
        """The steps before ``steps`` whose losses are recorded."""
        if isinstance(self.losses, str):
            return list(range(steps))
        if isinstance(self.losses, int):
            count = int(self.losses * np.log10(max(steps, 1))) + 1
            due = {0, *(round(10 ** (k / self.losses)) for k in range(count))}
        else:
            due = set(self.losses)
        return sorted(step for step in due if step < steps)


def _losses(losses: Any) -> int | str | tuple[int, ...]:
    """As given, steps ascending."""
    if not isinstance(losses, str | bool | int | np.integer):
        return _steps("record", losses)
    if losses == "every":
        return "every"
    if isinstance(losses, str | bool) or losses < 1:
        raise expected("record", "a number of steps per factor of ten, 'every', or steps", losses)
    return int(losses)


def _steps(name: str, steps: Any) -> tuple[int, ...]:
    """Different steps, ascending."""
    if not isinstance(steps, Iterable):
        raise expected(name, "a sequence of steps", steps)
    given = tuple(steps)
    for step in given:
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
            raise expected(name, "steps >= 0", list(given)[:3])
    return tuple(sorted({int(step) for step in given}))


class Records:
    """Losses written down, ``[member, position]`` for each step.

    Attributes:
        losses: Losses on a step's own prompts.
        held_out: Losses on held-out prompts; ``held_out_error`` is the standard error.
        final: Losses of members that have ended, at their last step.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.losses: dict[int, np.ndarray] = {}
        self.held_out: dict[int, np.ndarray] = {}
        self.held_out_error: dict[int, np.ndarray] = {}
        self.final = np.full(shape, np.nan)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, for a checkpoint."""
        arrays: dict[str, np.ndarray] = {"final": self.final}
        for name in ("losses", "held_out", "held_out_error"):
            rows = getattr(self, name)
            arrays[f"{name}.step"] = np.asarray(sorted(rows), np.int64)
            arrays[f"{name}.value"] = np.asarray([rows[step] for step in sorted(rows)]).reshape(len(rows), *self.shape)
        return arrays

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "Records":
        """What :meth:`arrays` gave."""
        members, positions = arrays["final"].shape
        records = cls((members, positions))
        records.final = arrays["final"]
        for name in ("losses", "held_out", "held_out_error"):
            steps, values = arrays[f"{name}.step"].tolist(), list(arrays[f"{name}.value"])
            getattr(records, name).update(zip(steps, values, strict=True))
        return records

    def table(self, rows: dict[int, np.ndarray], steps: list[int]) -> Float[np.ndarray, "member step position"]:
        """The rows at ``steps``; NaN where nothing was recorded."""
        missing = np.full(self.shape, np.nan)
        return np.stack([rows.get(step, missing) for step in steps], axis=1)
