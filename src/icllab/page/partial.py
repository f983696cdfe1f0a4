"""The figure of a run that is not finished: ``python -m icllab.page.partial ROOT CLAIM [FOLDER]`` writes a PNG.

The finished cells as they are, the others as NaN, which a figure leaves out. It runs in a process of its own, since
cells are files that somebody may have changed.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import CellsMissing, IclError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def so_far(root: Path, claim: str, folder: str | None = None) -> "Figure":
    """The claim's figure of the cells that are there."""
    from icllab.experiments import registry, results
    from icllab.experiments.store import Store

    store = Store.existing(root)
    stored = store.configuration()
    experiment = registry.load(claim, folder).with_fixed({n: (v,) for n, v in stored.get("fixed", {}).items()})
    experiment = experiment.under(stored.get("control"))
    grids = store.requested()
    cells = {results.label(c): (store.read(c), g.inside(c)) for g in grids for c in g.cells()}
    there = [cell for cell, _ in cells.values() if cell is not None]
    if not there:
        raise CellsMissing(f"{claim}: expected at least one finished cell, found none yet")
    whole = {at: _empty(there[0], inside) if cell is None else cell for at, (cell, inside) in cells.items()}
    dataset = results.assemble(experiment, grids, whole, there[0].attrs)
    if experiment.theory is not None:
        dataset = experiment.theory(dataset)
    return results.picture(experiment, results.described(experiment, dataset))


def _empty(like: "xr.Dataset", inside: dict) -> "xr.Dataset":
    """A cell in which nothing has been measured, with the axes of one in which something has."""
    import xarray as xr

    return xr.full_like(like.astype(float), float("nan")).reindex({name: list(at) for name, at in inside.items()})


def main() -> int:
    """Write the PNG to stdout, or one line to stderr."""
    from icllab.figures import png_bytes

    os.nice(10)  # the run goes first
    warnings.simplefilter("ignore")  # means of nothing
    root, claim, *folder = sys.argv[1:]
    try:
        picture = png_bytes(so_far(Path(root), claim, folder[0] if folder else None))
    except Exception as error:  # whatever a claim's figure raises of what is not there
        said = error if isinstance(error, IclError) else f"no figure of a part: {type(error).__name__}: {error}"
        print(" ".join(str(said).split()), file=sys.stderr)
        return 1
    sys.stdout.buffer.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
