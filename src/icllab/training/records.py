"""What is written down while training, and when: losses at log-spaced steps."""

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float

from icllab.core.errors import expected


class Schedule:
    """The steps at which losses are recorded, whatever the length of the run.

    ``16`` means so many log-spaced steps in each factor of ten, and step 0; ``"every"`` all of them; a sequence
    those. A longer run has the same steps and more. The last step of a run is always recorded.
    """

    def __init__(self, record: int | str | Iterable[int]) -> None:
        if record == "every":
            self._upto: Callable[[int], set[int]] = lambda steps: set(range(steps))
        elif isinstance(record, int) and record > 0:
            self._upto = lambda steps: {
                0,
                *(round(10 ** (k / record)) for k in range(int(record * np.log10(max(steps, 1))) + 1)),
            }
        elif isinstance(record, str | int):
            raise expected("record", "a number of steps per factor of ten, 'every', or steps", record)
        else:
            chosen = {int(step) for step in record}
            if any(step < 0 for step in chosen):
                raise expected("record", "steps >= 0", sorted(chosen)[:3])
            self._upto = lambda steps: chosen

    def upto(self, steps: int) -> list[int]:
        """The recorded steps before ``steps``."""
        return sorted(step for step in self._upto(steps) if step < steps)


class Records:
    """Losses written down, ``[member, position]`` for each step.

    Attributes:
        losses: Of a step's own prompts.
        held_out: On held-out prompts; ``held_out_error`` is the standard error.
        final: Of members that have ended, at their last step.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.losses: dict[int, np.ndarray] = {}
        self.held_out: dict[int, np.ndarray] = {}
        self.held_out_error: dict[int, np.ndarray] = {}
        self.final = np.full(shape, np.nan)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, for a checkpoint."""
        found: dict[str, np.ndarray] = {"final": self.final}
        for name in ("losses", "held_out", "held_out_error"):
            rows = getattr(self, name)
            found[f"{name}.step"] = np.asarray(sorted(rows), np.int64)
            found[f"{name}.value"] = np.asarray([rows[step] for step in sorted(rows)]).reshape(len(rows), *self.shape)
        return found

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
