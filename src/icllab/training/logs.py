"""Write the losses of training runs to TensorBoard, Weights & Biases, or any object with two methods.

A run knows of no log. :func:`log` reads what it has written down, from the run itself or from the directory of its
checkpoints; :class:`Following` does so again and again while the run goes on.

A run that was stopped and goes on from its store goes on in its log: ``logs.json`` in the store has an identifier,
which is that of the run of Weights & Biases too, and the last step that was logged.
"""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from icllab.core.errors import EnvironmentFault, IclError, expected
from icllab.core.files import DamagedFile, disk_faults, parse_json, write_atomically
from icllab.training.checkpoints import KEPT, unpacked
from icllab.training.finished_runs import load
from icllab.training.runs import Run

SECONDS = 10.0
"""How often a run that goes on is looked at."""
_STORE = "logs.json"
_STEPS = "icl-lab.json"
_NAMES = {"training_loss": "losses", "held_out_loss": "held_out"}


@runtime_checkable
class Log(Protocol):
    """Destination of losses."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write named numbers at a step; steps ascend."""

    def close(self) -> None:
        """Close the log; no numbers follow."""


class TensorBoard:
    """A directory of event files for TensorBoard.

    Steps of a store that the directory has are not written again: ``icl-lab.json`` in it has the last.

    Raises:
        EnvironmentFault: There is neither torch's writer nor tensorboardX.
    """

    def __init__(self, folder: str | Path) -> None:
        self._writer = _writer()(str(folder))
        self._folder, self._run = Path(folder), ""

    def resume(self, store: Path) -> int:
        """Continue the run of a store; return the last step in the log, or -1 if there is none."""
        self._run = _identifier(store)
        return _read(self._folder / _STEPS).get(self._run, -1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write named numbers at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def note(self, step: int) -> None:
        """Save the last step for :meth:`resume`."""
        if self._run:
            _update(self._folder / _STEPS, {self._run: step})

    def close(self) -> None:
        """Write buffered numbers to disk."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in local files; nothing is sent unless ``mode`` is ``"online"``.

    The run of a store has the store's identifier: where training goes on, the same run goes on.

    Args:
        project: Name of the project.
        folder: Directory of the files; ``wandb sync`` sends them later, and ``wandb sync --append`` those of a run that
            went on.
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
            raise EnvironmentFault("Weights & Biases needs wandb; `pip install wandb` installs it") from error
        self._wandb, self._run, self._store = wandb, None, None
        self._arguments: dict[str, Any] = {"project": project, "dir": str(folder), "name": name, "mode": mode}

    def resume(self, store: Path) -> int:
        """Continue the run of a store; return the last step in the run, or -1 if there is none."""
        self._store = store
        run = self._begun(id=_identifier(store), resume="allow")
        # Online, the server knows of steps that were sent before a kill and not noted here.
        return max(_read(store / _STORE).get("steps", {}).get(self._place, -1), getattr(run, "starting_step", 0) - 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write named numbers at a step."""
        self._begun().log(values, step=step)

    def note(self, step: int) -> None:
        """Save the last step for :meth:`resume`."""
        if self._store is not None:
            steps = _read(self._store / _STORE).get("steps", {})
            _update(self._store / _STORE, {"steps": steps | {self._place: step}})

    def close(self) -> None:
        """Finish the run of Weights & Biases."""
        if self._run is not None:
            self._run.finish()

    @property
    def _place(self) -> str:
        return f"wandb: {self._arguments['project']}"

    def _begun(self, **more: str) -> Any:
        if self._run is None:
            self._run = self._wandb.init(**self._arguments, **more)
        return self._run


def log(run: Run | str | Path, to: Any, *, after: int = -1) -> int:
    """Write the recorded losses of a run to a log, and return the run's last step.

    ``training_loss`` and, where it was recorded, ``held_out_loss`` are means over positions; of several members there
    is ``training_loss/0`` and so on for each that has not ended. How many steps there are is what the run records:
    ``record="every"`` is all.

    Args:
        run: A finished run; or the directory of its checkpoints, of a run that may still go on.
        to: A :class:`Log`, where to write. Of a directory, :class:`TensorBoard` and :class:`WeightsAndBiases` get the
            steps that they do not have yet.
        after: Steps up to this one are left out.

    Returns:
        The last step that was written; ``after``, where there was none.
    """
    if not isinstance(to, Log):
        raise expected("to", "a log, with methods write and close", type(to).__name__)
    if not isinstance(run, Run) and Path(run).is_dir():
        after = max(after, _resumed(Path(run), to))
    return _write(run, to, after)


def _resumed(store: Path, to: Any) -> int:
    """The last step of a store in a log; -1 if there is none, or if the log cannot be continued."""
    return to.resume(store) if hasattr(to, "resume") else -1


def _write(run: Run | str | Path, to: Any, after: int) -> int:
    last = after
    try:
        for step, values in _rows(run):
            if step > after:
                to.write(step, values)
                last = step
    finally:
        if last > after and hasattr(to, "note"):
            to.note(last)
    return last


class Following:
    """Write a run's losses to a log during training: ``with Following("runs/a", TensorBoard("logs")): icl.fit(...)``.

    It reads the checkpoints in the run's ``store``, so that losses come as often as these do:
    ``CheckpointStore("runs/a", seconds=10)``. At the end what is left is written, and the log is closed. A log that
    fails ends the following, not the run: its error is raised at the end. Where training goes on from its store,
    :class:`TensorBoard` in the same directory and :class:`WeightsAndBiases` in the same project go on, too.

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
        self._last = _resumed(self._store, self._to)
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
            self._last = _write(self._store, self._to, self._last)
        except Exception as error:  # whatever a log raises
            self._error = error


def _rows(run: Run | str | Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Steps, and the named numbers at each."""
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
    """Losses [member, position] by name and step."""
    variables = {
        name: run.dataset[name].transpose("step", "member", "position") for name in _NAMES if name in run.dataset
    }
    return {name: dict(zip(v["step"].values.tolist(), v.values, strict=True)) for name, v in variables.items()}


def _of_store(root: Path) -> dict[str, dict[int, np.ndarray]]:
    """Losses of the newest sound checkpoint, and of the finished run if there is one."""
    found: dict[str, dict[int, np.ndarray]] = {name: {} for name in _NAMES}
    with contextlib.suppress(IclError):  # not finished yet
        found |= _of_run(load(root))
    for path in sorted(root.glob("checkpoint-*.icl"), reverse=True):
        try:
            header, arrays = unpacked(path)
        except IclError:  # it is being replaced, or damaged; the one before it is nearly as good
            continue
        for name, field in _NAMES.items():
            rows = zip(arrays[f"records.{field}.step"].tolist(), arrays[f"records.{field}.value"], strict=True)
            # At the present step not all is written down yet.
            found[name] |= {step: losses for step, losses in rows if step < header["step"]}
        break
    return found


def _identifier(store: Path) -> str:
    """The identifier of a store's run, created when it is first requested."""
    identifier = _read(store / _STORE).get("id")
    if identifier is None:
        identifier = uuid.uuid4().hex[:12]
        _update(store / _STORE, {"id": identifier})
    return identifier


def _read(path: Path) -> dict[str, Any]:
    with disk_faults(f"cannot read {path}", KEPT):
        content = path.read_bytes() if path.exists() else b"{}"
    try:
        return dict(parse_json(content))
    except (ValueError, TypeError) as error:
        raise DamagedFile(
            f"{path}: expected the steps of a log as JSON, got {content[:30]!r} ({error}); move it away"
        ) from None


def _update(path: Path, entries: dict[str, Any]) -> None:
    with disk_faults(f"cannot use {path.parent} for a log", KEPT):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(_read(path) | entries).encode(), KEPT)


def _writer() -> Any:
    """The class that writes event files, from whichever package is installed."""
    import importlib

    for module in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            return importlib.import_module(module).SummaryWriter
        except (ImportError, AttributeError):
            continue
    raise EnvironmentFault(
        "TensorBoard needs a writer of event files; `pip install tensorboardX` (or torch and tensorboard) installs one"
    )
