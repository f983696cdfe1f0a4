"""The figures of claims: one, or several side by side, and the files of one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import expected
from icllab.lab.claim import Claim

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def picture(claim: Claim, dataset: "xr.Dataset") -> "Figure":
    """The claim's figure of a Dataset, in the current style."""
    from icllab.figures.style import context

    assert claim.figure is not None  # the registry has set it
    with context():
        return claim.figure(dataset)


def pictures(
    drawings: "Sequence[tuple[str, Callable[[], Figure]]]", style: str = "screen", width: str | float | None = None
) -> "Figure":
    """The figure of a claim in a style, or figures of several side by side, from names and functions that draw."""
    from icllab.figures.layout import side_by_side, sized
    from icllab.figures.style import drawn_as, named_look

    if not drawings:
        raise expected("results", "at least one claim", [])
    with drawn_as(named_look(style, width)):
        return sized(drawings[0][1]()) if len(drawings) == 1 else side_by_side(drawings)


def figure_files(claim: Claim, dataset: "xr.Dataset", stem: Path) -> tuple[list[Path], list[str]]:
    """Save the figure and return its files, or a note if it cannot be drawn: a verdict needs no figure."""
    from icllab.figures import save

    try:
        figure = picture(claim, dataset)
    except Exception as error:  # whatever a claim's figure raises
        return [], [f"no figure: it raised {type(error).__name__}: {error}"]
    return list(save(figure, stem)), []
