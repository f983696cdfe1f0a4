"""The sentence that an identification ends in, and a Dataset that shows it first."""

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from icllab.diagnostics.identification import verdicts

_NEAREST = 3  # largest number of candidates in a sentence


class Identification(xr.Dataset):
    """A Dataset that shows its sentence, ``attrs["summary"]``, and its warnings before its variables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), super().__repr__()])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self._lines())
        return f"<div>{lines}{super()._repr_html_()}</div>"

    def _lines(self) -> list[str]:
        warnings = [f"warning: {text}" for text in np.atleast_1d(self.attrs.get("warnings", []))]
        return [str(self.attrs[name]) for name in ("summary",) if name in self.attrs] + warnings


def summary(
    judgements: Sequence[Any],
    fractions: Float[np.ndarray, "network candidate"],
    among: Bool[np.ndarray, "network candidate"],
    names: Sequence[str],
    tolerance: float,
) -> str:
    """The verdict of a network with its nearest candidates, or the number of each verdict of several networks."""
    verdicts_of = list(map(str, judgements))
    limit = f"accepted is at most {percent(tolerance)}"
    if len(verdicts_of) > 1:
        counts = Counter(verdicts_of).most_common()
        parts = [f"{count} {verdict}" for verdict, count in counts]
        return f"of {len(verdicts_of)} networks {_listed(parts)}; {limit}"
    verdict, order = verdicts_of[0], np.argsort(fractions[0], kind="stable").tolist()
    if verdict == verdicts.MANY:
        order = [i for i in order if among[0, i]]
    advice = "; more prompts may decide" if verdict == verdicts.UNDECIDED else ""
    return f"{verdict}: {_leaving(order[:_NEAREST], fractions[0], names)}; {limit}{advice}"


def _leaving(order: Iterable[int], fractions: Float[np.ndarray, " candidate"], names: Sequence[str]) -> str:
    """Which candidates leave how much, those that leave the same together."""
    groups: dict[str, list[str]] = {}
    for i in order:
        groups.setdefault(percent(float(fractions[i])), []).append(names[int(i)])
    return ", ".join(
        f"{_listed(group)} {'leave' if len(group) > 1 else 'leaves'} {share}" for share, group in groups.items()
    )


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def percent(fraction: float) -> str:
    """A fraction in percent, with two digits: ``"14 %"``, ``"0.23 %"``."""
    share = 100 * fraction
    if 0 < share < 0.01:
        return "less than 0.01 %"
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.2g} %"
