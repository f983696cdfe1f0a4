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
    from matplotlib.figure import Figure


def so_far(root: Path, name: str, folder: str | None = None) -> "Figure":
    """The claim's figure of the cells that are there."""
    from icllab.lab import registry
    from icllab.lab.results import Store, assemble, picture, predicted

    store = Store.existing(root)
    stored = store.configuration()
    claim = registry.load(name, folder).with_fixed({n: (v,) for n, v in stored.get("fixed", {}).items()})
    claim = claim.under(stored.get("control"))
    grids = store.requests()
    cells = [(cell, store.read(cell)) for grid in grids for cell in grid.cells()]
    finished = [(cell, dataset) for cell, dataset in cells if dataset is not None]
    if not finished:
        raise CellsMissing(f"{name}: expected at least one finished cell, found none yet")
    return picture(claim, predicted(claim, assemble(claim, grids, finished)))


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
