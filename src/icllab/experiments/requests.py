"""What one run or one reading is asked for, and where on disk that is."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icllab.core.errors import CellsMissing, expected, require_known, require_path
from icllab.experiments import registry
from icllab.experiments.experiment import SIZES, Experiment
from icllab.experiments.placement import AS_STATED, Placement

OUT = "icl-results"


@dataclass(frozen=True)
class Request:
    """What one run is asked to do; plain values only, so that a worker can be told of it."""

    claim: str
    size: str = "small"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seeds: int | None = None
    out: str = OUT
    control: str | None = None
    claims: str | None = None
    placement: Placement = AS_STATED

    def experiment(self) -> Experiment:
        """The claim, with the fixed values, the control and the precision asked for."""
        own = registry.load(self.claim, self.claims)
        asked = dataclasses.replace(own, precision=self.placement.precision or own.precision)
        return asked.at(self.size).with_fixed(self.axes).under(self.control)

    @property
    def root(self) -> Path:
        """Where its store is."""
        return store_root(self.out, self.claim, self.size, self.control)


def store_root(out: str | Path, claim: str, size: str, control: str | None = None) -> Path:
    """``OUT/<subject>/<finding>/<size>``; a negative control has a directory of its own."""
    return Path(out, *claim.split("/"), size if control is None else f"{size}@{control}")


def sizes_present(out: str | Path, claim: str, control: str | None = None) -> list[str]:
    """The sizes at which a claim has results under ``out``, the largest last."""
    return [s for s in SIZES if (store_root(out, claim, s, control) / "configuration.json").is_file()]


def requested(
    claim: str,
    size: str,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    placement: Placement = AS_STATED,
) -> Request:
    """A request from the values a user gave; names are checked."""
    folder = _places(out, claims)
    if axes is not None and not isinstance(axes, Mapping):
        raise expected("axes", "a mapping of names to values", axes, "such as {'tau': [0.5, 2.0]}")
    chosen = {name: _values(name, values) for name, values in (axes or {}).items()}
    if not isinstance(size, str):
        raise expected("size", f"one of {', '.join(SIZES)}", size)
    request = Request(claim, size, chosen, seeds, str(out), control, folder, placement)
    request.experiment().grid(size, chosen, seeds)
    return request


def _places(out: Any, claims: Any) -> str | None:
    """The folder of the user's claims, whole; what is no path is refused."""
    require_path("out", out, f"such as {OUT!r}")
    if claims is None:
        return None
    require_path("claims", claims, "the folder with claims of your own")
    return str(Path(claims).resolve())


def _values(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise expected(f"axes[{name!r}]", "a sequence of values", values, f"for one value: {{{name!r}: [{values!r}]}}")
    return tuple(values)


def stored_request(
    claim: str,
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> Request:
    """The request that reads what is under ``out``."""
    folder = _places(out, claims)
    registry.load(claim, folder).under(control)
    if size is not None:
        require_known("size", size, SIZES)
    present = sizes_present(out, claim, control)
    if not present or (size is not None and size not in present):
        wanted = claim + (f" at size {size}" if size else "")
        raise CellsMissing(
            f"{wanted}: expected results under {str(out)!r}, found none; "
            f"`icl run {claim}{f' --size {size}' if size else ''}` computes them"
        )
    return Request(claim, size or present[-1], out=str(out), control=control, claims=folder)
