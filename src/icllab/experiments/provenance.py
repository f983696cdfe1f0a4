"""Where a result came from: versions, commit, device, and a digest of the sources it depends on."""

import ast
import functools
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import icllab

_PACKAGE = Path(icllab.__file__).parent
_SURFACES = ("cli", "page")


@functools.cache
def commit() -> str:
    """The git commit of the package's checkout, ``+changes`` if it has any; empty for an installed wheel."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "--", "__init__.py"):
            return ""
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine() -> dict[str, str]:
    """JAX's version and device; imports JAX."""
    import jax

    device = jax.devices()[0]
    return {"jax_version": jax.__version__, "device": f"{device.platform}: {device.device_kind}"}


def sources_digest(claim_file: Path) -> str:
    """SHA-256 of the claim file and of every ``icllab`` source it imports, directly or not.

    Imports are read, not run. A package imported as such stands for all its modules, since its names
    resolve lazily: the digest may change too readily, never too late.
    """
    seen: dict[str, Path] = {}
    queue = [claim_file]
    while queue:
        path = queue.pop()
        for name in _imported(path):
            for module, source in _resolve(name):
                if module not in seen:
                    seen[module] = source
                    queue.append(source)
    digest = hashlib.sha256(claim_file.read_bytes())
    for module in sorted(seen):
        digest.update(module.encode() + b"\0" + seen[module].read_bytes())
    return digest.hexdigest()


@functools.cache
def _imported(path: Path) -> tuple[str, ...]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(sorted(n for n in names if n.split(".")[0] == "icllab"))


@functools.cache
def _resolve(name: str) -> tuple[tuple[str, Path], ...]:
    """The modules that ``import name`` or ``from parent import name`` may reach."""
    parts = name.split(".")[1:]
    base = _PACKAGE.joinpath(*parts)
    if not parts:
        # The whole library, from which any room may be reached by attribute; its surfaces change no result.
        rooms = sorted(p.parent.name for p in _PACKAGE.glob("*/__init__.py") if p.parent.name not in _SURFACES)
        return tuple(source for room in rooms for source in _resolve(f"{name}.{room}"))
    if base.with_suffix(".py").is_file():
        return ((name, base.with_suffix(".py")),)
    if (base / "__init__.py").is_file():
        # A package: its own file and its modules, but not the claims below the experiments' room.
        return tuple((f"{name}.{p.stem}", p) for p in sorted(base.glob("*.py")))
    parent, _, last = name.rpartition(".")
    return _resolve(_exported(parent).get(last, parent))


@functools.cache
def _exported(package: str) -> dict[str, str]:
    """name -> module, as a package's ``__init__`` imports its lazy names for type checkers."""
    path = _PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    if not path.is_file():
        return {}
    imports = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


def configuration(experiment: Any, size: str, world: str | None, schema: int) -> dict[str, Any]:
    """What a cell depends on besides its coordinates: a store holds cells of one configuration."""
    return {
        "claim": experiment.name,
        "size": size,
        "world": world,
        "fixed": dict(experiment.fixed),
        "static": list(experiment.static),
        "precision": experiment.precision,
        "key": experiment.key,
        "schema": schema,
    }
