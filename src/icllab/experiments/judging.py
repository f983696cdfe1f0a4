"""A claim's check and figure, whatever they may raise: they are files that a user may have written."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import EnvironmentFault, IclError
from icllab.core.files import disk_faults, write_atomically
from icllab.core.spelling import strict
from icllab.experiments import results

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.experiments.checks import Verdict
    from icllab.experiments.experiment import Experiment
    from icllab.experiments.requests import Request


def judged(experiment: "Experiment", dataset: "xr.Dataset", notes: Sequence[str], size: str) -> "Verdict":
    """The verdict; a check that raises is a fault of the claim file."""
    try:
        return results.judge(experiment, dataset, notes, size=size)
    except IclError:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"{experiment.name}: expected findings from its check, got {type(error).__name__}: {error}"
        ) from error


def draw_beside(experiment: "Experiment", dataset: "xr.Dataset", stem: Path) -> tuple[list[Path], list[str]]:
    """The figure's files, and a note instead of them where the figure cannot be drawn: a verdict needs none."""
    from icllab.figures import save

    try:
        figure = results.picture(experiment, dataset)
    except Exception as error:
        return [], [f"no figure: it raised {type(error).__name__}: {error}"]
    return list(save(figure, stem)), []


def drawing(experiment: "Experiment", dataset: "xr.Dataset") -> "Figure | None":
    """The figure; None where it cannot be drawn."""
    try:
        return results.picture(experiment, dataset)
    except Exception:  # whatever a claim's figure raises; `icl draw` says what
        return None


def judgement(experiment: "Experiment", request: "Request", verdict: "Verdict") -> dict[str, Any]:
    """A verdict as data: what was claimed, at which size, what was found, where it is."""
    return {
        **verdict.as_dict(),
        "sentence": experiment.claim,
        "size": request.size,
        "control": request.control,
        "results": request.root,
    }


def note(root: Path, dataset: "xr.Dataset", data: Mapping[str, Any]) -> None:
    """Keep a verdict beside the results that it is about, with the digest of what was measured."""
    kept = {**data, "digest": dataset.attrs["sources_digest"]}
    write_atomically(root / "verdict.json", (json.dumps(strict(kept), indent=1) + "\n").encode())


def noted(root: Path) -> dict[str, Any] | None:
    """The verdict that was kept beside results; None where there is none."""
    path = root / "verdict.json"
    if not path.is_file():
        return None
    with disk_faults(f"cannot read {path}"):
        return json.loads(path.read_text("utf-8"))
