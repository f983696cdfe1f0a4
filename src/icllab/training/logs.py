"""The losses of training runs for other programs: TensorBoard, Weights & Biases, or any object with two methods.

A run knows of no log. :func:`log` reads what it has written down, from the run itself or from the directory of its
checkpoints; :class:`Following` does so again and again while the run goes on.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from icllab.core.errors import EnvironmentFault, IclError, expected
from icllab.training.checkpoints import unpacked
from icllab.training.finished_runs import load
from icllab.training.runs import Run

SECONDS = 10.0
"""How often a run that goes on is looked at."""
_NAMES = {"training_loss": "losses", "held_out_loss": "held_out"}


@runtime_checkable
class Log(Protocol):
    """What losses are written to."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Note numbers by name, after so many updates. Steps ascend."""

    def close(self) -> None:
        """End; nothing is written after it."""


class TensorBoard:
    """A directory of event files for TensorBoard.

    Raises:
        EnvironmentFault: There is neither torch's writer nor tensorboardX.
    """

    def __init__(self, folder: str | Path) -> None:
        self._writer = _writer()(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Note numbers by name, after so many updates."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is not yet on disk."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in files of this machine: nothing is sent unless ``mode`` is ``"online"``.

    Args:
        project: Name of the project.
        folder: Directory of the files; ``wandb sync`` sends them later.
        name: Name of the run; None: one of theirs.
        mode: ``"offline"`` or ``"online"``.

    Raises:
        InputError: The mode is neither.
        EnvironmentFault: There is no wandb.
    """

    def __init__(self, project: str, folder: str | Path, *, name: str | None = None, mode: str = "offline") -> None:
        if mode not in ("offline", "online"):
            raise expected("mode", "'offline' or 'online'", mode)
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise EnvironmentFault("Weights & Biases needs wandb; `pip install wandb` brings it") from error
        self._run = wandb.init(project=project, dir=str(folder), name=name, mode=mode)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Note numbers by name, after so many updates."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """End the run of theirs."""
        self._run.finish()


def log(run: Run | str | Path, to: Any, *, after: int = -1) -> int:
    """Write the recorded losses of a run to a log, and say what its last step is.

    ``training_loss`` and, where it was recorded, ``held_out_loss`` are means over positions; of several members there
    is ``training_loss/0`` and so on for each that has not ended. How many steps there are is what the run records:
    ``record="every"`` is all.

    Args:
        run: A finished run; or the directory of its checkpoints, of a run that may still go on.
        to: A :class:`Log`, where to write.
        after: Steps up to this one are left out.

    Returns:
        The last step that was written; ``after``, where there was none.
    """
    if not isinstance(to, Log):
        raise expected("to", "a log, with methods write and close", type(to).__name__)
    last = after
    for step, values in _rows(run):
        if step > after:
            to.write(step, values)
            last = step
    return last


class Following:
    """Write a run's losses to a log while it goes on: ``with Following("runs/a", TensorBoard("logs")): icl.fit(...)``.

    It reads the checkpoints in the run's ``store``, so that losses come as often as these do:
    ``CheckpointStore("runs/a", seconds=10)``. At the end what is left is written, and the log is closed. A log that
    fails ends the following, not the run: its error is raised at the end.

    Args:
        store: Directory of the run's checkpoints; it need not be there yet.
        to: A :class:`Log`, where to write.
        seconds: Time between two looks.
    """

    def __init__(self, store: str | Path, to: Any, *, seconds: float = SECONDS) -> None:
        if not isinstance(to, Log):
            raise expected("to", "a log, with methods write and close", type(to).__name__)
        if not seconds > 0:
            raise expected("seconds", "a positive number", seconds)
        self._store, self._to, self._seconds = Path(store), to, seconds
        self._last = -1
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Following":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._look()
        finally:
            self._to.close()
        if self._error is not None and kind is None:
            raise self._error

    def _follow(self) -> None:
        while not self._ended.wait(self._seconds) and self._error is None:
            self._look()

    def _look(self) -> None:
        if self._error is not None:
            return
        try:
            self._last = log(self._store, self._to, after=self._last)
        except Exception as error:  # whatever a log raises
            self._error = error


def _rows(run: Run | str | Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Steps, and the numbers by name at each."""
    found = _of_run(run) if isinstance(run, Run) else _of_store(Path(run))
    for step in sorted({step for table in found.values() for step in table}):
        means = {name: table[step].astype(np.float64).mean(1) for name, table in found.items() if step in table}
        row = {
            name if len(members) == 1 else f"{name}/{member}": float(mean)
            for name, members in means.items()
            for member, mean in enumerate(members)
            if np.isfinite(mean)
        }
        if row:
            yield step, row


def _of_run(run: Run) -> dict[str, dict[int, np.ndarray]]:
    """Name -> step -> losses [member, position]."""
    variables = {
        name: run.dataset[name].transpose("step", "member", "position") for name in _NAMES if name in run.dataset
    }
    return {name: dict(zip(v["step"].values.tolist(), v.values, strict=True)) for name, v in variables.items()}


def _of_store(root: Path) -> dict[str, dict[int, np.ndarray]]:
    """What the newest sound checkpoint has, and the finished run, where there is one."""
    found: dict[str, dict[int, np.ndarray]] = {name: {} for name in _NAMES}
    with contextlib.suppress(IclError):  # not finished yet
        found |= _of_run(load(root))
    for path in sorted(root.glob("checkpoint-*.icl"), reverse=True):
        try:
            header, arrays = unpacked(path)
        except IclError:  # it is being replaced, or damaged; the one before it is nearly as good
            continue
        for name, own in _NAMES.items():
            rows = zip(arrays[f"records.{own}.step"].tolist(), arrays[f"records.{own}.value"], strict=True)
            # At the present step not all is written down yet.
            found[name] |= {step: losses for step, losses in rows if step < header["step"]}
        break
    return found


def _writer() -> Any:
    """The class that writes event files, of whichever package has one."""
    import importlib

    for module in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            return importlib.import_module(module).SummaryWriter
        except (ImportError, AttributeError):
            continue
    raise EnvironmentFault(
        "TensorBoard needs a writer of event files; `pip install tensorboardX` (or torch and tensorboard) brings one"
    )
