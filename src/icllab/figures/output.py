"""Write a figure to PNG and PDF files: the same bytes for the same figure, and never half a file."""

import io
from pathlib import Path
from typing import Literal

from icllab.core.files import disk_faults, write_atomically
from icllab.figures.style import context, drawn_as, import_matplotlib, look

import_matplotlib()

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Neither the date nor the library's version: a figure is a function of its Dataset.
_METADATA = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
}


class Drawing(Figure):
    """A figure that displays itself in a notebook, without a window system or the notebook's settings."""

    caption = ""

    def __init__(self, *, width: float, height: float) -> None:
        """Make an empty figure of a size in inches."""
        self.look = look()
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def _rendered(figure: Figure, kind: Literal["png", "pdf"], dpi: float = 300) -> bytes:
    buffer = io.BytesIO()
    with drawn_as(getattr(figure, "look", look())), context():
        FigureCanvasAgg(figure).print_figure(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return buffer.getvalue()


def png_bytes(figure: Figure, dpi: float = 300) -> bytes:
    """The figure as a PNG, with a resolution in dots per inch."""
    return _rendered(figure, "png", dpi)


def pdf_bytes(figure: Figure) -> bytes:
    """The figure as a PDF with its fonts."""
    return _rendered(figure, "pdf")


def save(figure: Figure, stem: str | Path) -> tuple[Path, Path]:
    """Write ``stem.png`` and ``stem.pdf`` (fonts embedded) and return their paths.

    Each file appears whole or not at all. A directory that is not there is made.
    """
    stem, status = Path(stem), "the results are kept"
    with disk_faults(f"cannot write the figure {stem}", status):
        stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    write_atomically(png, _rendered(figure, "png"), status)
    write_atomically(pdf, _rendered(figure, "pdf"), status)
    return png, pdf
