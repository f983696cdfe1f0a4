"""Which claims there are: a file is a claim, its name is its room and its file name.

Claims ship in ``icllab/experiments/<room>/``; a folder of the user's own may hold more, as
``FOLDER/<finding>.py`` (room: the folder's name) or ``FOLDER/<room>/<finding>.py``. A user's file is
Python that the user asked to run; nothing else is ever imported from such a folder.
"""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from icllab.core.errors import InputError, unknown
from icllab.core.sources import reference
from icllab.experiments.experiment import Experiment

BUILT_IN = Path(__file__).parents[1] / "claims"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def _claim_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.py") if _NAME.fullmatch(p.stem))


def claims(folder: str | Path | None = None) -> dict[str, Path]:
    """``room/finding`` -> file, of the built-in claims and those of the user's ``folder``."""
    found = {f"{p.parents[1].name}/{p.parent.name}": p for p in sorted(BUILT_IN.glob("*/*/claim.py"))}
    if folder is None:
        return found
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"--claims: expected a folder of claim files, got {str(folder)!r}, which is not a folder")
    own = [
        *_claim_files(folder),
        *(p for room in sorted(folder.iterdir()) if room.is_dir() for p in _claim_files(room)),
    ]
    if not own:
        raise InputError(f"--claims: expected at least one <finding>.py in {str(folder)!r}, found none")
    for path in own:
        name = f"{path.resolve().parent.name}/{path.stem}"
        if name in found:
            raise InputError(f"--claims: expected a name of its own, got {name!r} twice; rename {path}")
        found[name] = path
    return found


def load(name: str, folder: str | Path | None = None) -> Experiment:
    """The experiment of a claim file, with its name and sources checked."""
    known = claims(folder)
    if name not in known:
        raise unknown("claim", name, known, "" if folder else "(claims of your own: --claims DIR)")
    path = known[name]
    experiment = getattr(_module(name, path), "experiment", None)
    if not isinstance(experiment, Experiment):
        raise InputError(f"{path}: expected a module-level `experiment = Experiment(...)`, got {experiment!r}")
    for key in experiment.sources:
        reference(key)
    return dataclasses.replace(experiment, name=name)


def _module(name: str, path: Path) -> ModuleType:
    if path.is_relative_to(BUILT_IN):
        return importlib.import_module("icllab.claims." + name.replace("/", ".") + ".claim")
    # Named by its full path, so that two folders' claims of one name stay two modules.
    spec = importlib.util.spec_from_file_location("icllab_claim_" + re.sub(r"\W", "_", str(path.resolve())), path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: expected a Python file, got one that cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise InputError(f"{path}: expected a claim file that imports, got {type(error).__name__}: {error}") from error
    return module
