"""How long the cells of a run that are left will take, from the coordinates and times of those that are done."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from icllab.core.grid import Coordinates

_SHRINKAGE = 0.1
_POWERS = 6.0
_GOLDEN = (math.sqrt(5) - 1) / 2


def spread(cells: Sequence[Coordinates]) -> list[Coordinates]:
    """The cells in an order whose first few are from everywhere in the grid: times and figures fill in evenly."""
    order = sorted(range(len(cells)), key=lambda i: (i * _GOLDEN) % 1)
    return [cells[i] for i in order]


def share(cells: Sequence[Coordinates], number: int, shards: int) -> list[Coordinates]:
    """The cells of one of several shards, numbered from 1: no two have one in common, and together they have all.

    Cells are dealt by size, the largest first, there and back again, as players are chosen for two teams: each shard
    has as many as the others up to one, and of every size. The size is the product of the numeric coordinates, since
    what a cell costs grows with those; of equal sizes the order of the grid decides.
    """

    def size(cell: Coordinates) -> float:
        return sum(math.log(value) for value in cell.values() if isinstance(value, int | float) and value > 0)

    order = sorted(range(len(cells)), key=lambda i: -size(cells[i]))
    dealt = (i for turn, i in enumerate(order) if _dealt_to(turn, shards) == number - 1)
    return [cells[i] for i in sorted(dealt)]


def _dealt_to(turn: int, shards: int) -> int:
    turn %= 2 * shards
    return min(turn, 2 * shards - 1 - turn)


class Stopwatch:
    """Seconds that passed inside, and how many of them JAX compiled; those are not paid again."""

    seconds: float = 0.0
    compiling: float = 0.0


@contextlib.contextmanager
def watched() -> Iterator[Stopwatch]:
    """Time what happens inside."""
    import time

    import jax

    watch = Stopwatch()

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/"):
            watch.compiling += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    began = time.perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - began
        watch.compiling = min(watch.compiling, watch.seconds)
        jax.monitoring.unregister_event_duration_listener(listen)


class Pace:
    r"""Seconds of a cell as a product of a power of each numeric coordinate and of one factor for each value.

    .. math:: \log t = a + \sum_{\text{axis}} (c_{\text{axis}} \log x_{\text{axis}} + b_{\text{axis}, x})

    by ridge regression, in which powers are shrunk less than factors. Predictions are scaled so that those of the cells
    that are done add up to what these took. ``workers`` is how many cells are computed at a time.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.done: list[tuple[Coordinates, float]] = []

    def took(self, cell: Coordinates, seconds: float) -> None:
        """A cell is done."""
        self.done.append((cell, max(seconds, 1e-3)))

    def left(self, cells: Sequence[Coordinates]) -> float | None:
        """Seconds for the given cells; None before any cell is done."""
        if not self.done:
            return None
        known, times = [cell for cell, _ in self.done], np.array([seconds for _, seconds in self.done])
        features = _features([*known, *cells])
        before, after = features[: len(known)], features[len(known) :]
        logs = np.log(times) - np.log(times).mean()
        if before.shape[1] < len(times):  # two ways to the same weights
            weights = np.linalg.solve(before.T @ before + _SHRINKAGE * np.eye(before.shape[1]), before.T @ logs)
        else:
            weights = before.T @ np.linalg.solve(before @ before.T + _SHRINKAGE * np.eye(len(times)), logs)
        scale = times.sum() / np.exp(before @ weights).sum()
        return float(scale * np.exp(after @ weights).sum()) / self.workers


def _features(cells: Sequence[Coordinates]) -> np.ndarray:
    """For each cell the logarithm of its positive numbers, and an indicator of every value."""
    columns = [np.zeros(len(cells))]
    for name in cells[0]:
        values = [cell[name] for cell in cells]
        if all(isinstance(value, int | float) and value > 0 for value in values):
            logs = np.log(np.array(values, dtype=float))
            columns.append(_POWERS * (logs - logs.mean()))
        columns += [np.array([value == one for value in values], dtype=float) for one in dict.fromkeys(values)]
    return np.stack(columns, axis=1)
