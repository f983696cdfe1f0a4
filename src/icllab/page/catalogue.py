"""What the claims say: read by another process, and kept from one start to the next.

Importing every claim takes seconds and the libraries of all of them; a user's own claim
may import anything. So ``python -m icllab.page.catalogue [FOLDER]`` does it, and prints what the page shows.
"""

import ast
import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icllab
from icllab.core.errors import EnvironmentFault, IclError
from icllab.core.files import disk_faults, write_atomically
from icllab.core.sources import Reference
from icllab.lab import records, registry
from icllab.lab.records import Card

_PACKAGE = Path(icllab.__file__).parent
_SECONDS = 300


@dataclass(frozen=True)
class Entry:
    """A claim: its card, what its file says about it, and the version of its measurement.

    Attributes:
        card: What it says, and its record.
        about: The docstring of its file; ``subject`` is that of its subject's folder.
        version: The ``VERSION`` of its measurement; results of another one are stale.
        fault: Why the claim's file cannot be used, where it cannot; the card is then empty but for its name.
    """

    card: Card
    about: str = ""
    subject: str = ""
    version: int = 1
    fault: str = ""


def catalogue(folder: Path | None = None) -> dict[str, Entry]:
    """Claim -> entry: the built-in claims, and those of the user's ``folder``."""
    fingerprint = _fingerprint()
    found = _kept(fingerprint)
    if found is None:
        found = apart(None)
        _keep(fingerprint, found)
    return found if folder is None else found | apart(folder)


def apart(folder: Path | None) -> dict[str, Entry]:
    """The built-in claims, or those of a folder, read by another process."""
    words = [] if folder is None else [str(folder.resolve())]
    command = [sys.executable, "-P", "-m", "icllab.page.catalogue", *words]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"the claims: expected an answer within {_SECONDS} s, got none") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise EnvironmentFault(f"the claims: expected their list, got {said[-1] if said else done.returncode}")
    return {claim: _from_json(entry) for claim, entry in json.loads(done.stdout).items()}


def entries(folder: Path | None) -> dict[str, Entry]:
    """The same, in this process."""
    built_in = registry.claims()
    chosen = built_in if folder is None else [name for name in registry.claims(folder) if name not in built_in]
    return {claim: _entry(claim, folder) for claim in chosen}


def texts(claim: str, folder: Path | None = None) -> dict[str, str]:
    """File name -> text: what a claim says and judges, and how it is measured."""
    path = registry.claims(folder)[claim]
    files = dict.fromkeys([path, registry.measure_file(path)])
    return {file.name: file.read_text("utf-8") for file in files}


def _entry(claim: str, folder: Path | None) -> Entry:
    path = registry.claims(folder)[claim]
    try:
        card, about = records.card(claim, folder), _docstring(path)
        subject = _docstring(_PACKAGE / "claims" / card.subject / "__init__.py")
        return Entry(card, about, " ".join(subject.split()), registry.version(path))
    except (IclError, OSError, ValueError, KeyError, SyntaxError) as error:
        return Entry(Card(claim, "", "", (), (), {}, {}), fault=f"{path.name}: {error}")


def _docstring(path: Path) -> str:
    """The file is read, not run."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "") if path.is_file() else ""


def _fingerprint() -> str:
    """Which sources and records there are, by their sizes and times: nothing is read."""
    parts = [part for part in _PACKAGE.iterdir() if part.name not in ("page", "cli")]  # which no claim is about
    within = (path for part in parts for path in ([part] if part.is_file() else part.rglob("*")))
    files = sorted(path for path in within if path.suffix in (".py", ".json", ".bib"))
    said = [f"{icllab.__version__} {_PACKAGE}"]
    for path in files:
        with contextlib.suppress(OSError):
            state = path.stat()
            said.append(f"{path.relative_to(_PACKAGE)} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _place() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "icl-lab" / f"claims-{hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:12]}.json"


def _kept(fingerprint: str) -> dict[str, Entry] | None:
    """The entries of an earlier start; None where there are none of these sources."""
    try:
        stored = json.loads(_place().read_text("utf-8"))
        if stored["fingerprint"] != fingerprint:
            return None
        return {claim: _from_json(entry) for claim, entry in stored["entries"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(fingerprint: str, found: Mapping[str, Entry]) -> None:
    content = json.dumps({"fingerprint": fingerprint, "entries": _plain(found)}, ensure_ascii=False).encode()
    with contextlib.suppress(EnvironmentFault), disk_faults("cannot keep the claims"):  # they are read again then
        _place().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(_place(), content)


def _plain(found: Mapping[str, Entry]) -> dict[str, Any]:
    return {claim: dataclasses.asdict(entry) for claim, entry in found.items()}


def _from_json(stored: Mapping[str, Any]) -> Entry:
    card = stored["card"]
    sources = tuple(Reference(**source) for source in card["sources"])
    return Entry(**{**stored, "card": Card(**{**card, "sources": sources, "sizes": tuple(card["sizes"])})})


def main() -> None:
    """Print the claims as JSON; what a claim's file prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        content = json.dumps(_plain(entries(folder)), ensure_ascii=False).encode()
    except IclError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    with os.fdopen(out, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    main()
