"""Draw the claims' figures from the data of their records, into the book: ``python docs/make_figures.py [CLAIM...]``.

Each claim gets a figure as wide as a page, a figure of one panel for lists (in ``cards``), and a caption. The caption
stands in ``captions.json`` beside the digest of the data, by which a test finds a figure of other data.
"""

import io
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import iclbook
from icllab.core.errors import CellsMissing
from icllab.core.files import write_atomically
from icllab.figures import png_bytes
from icllab.figures.style import CARD, PAGE, Look, drawn_as
from icllab.lab import records, registry
from icllab.lab.drawing import picture

FOLDER = Path(iclbook.__file__).parent / "figures"
_DPI = {PAGE: 160, CARD: 200}
_COLOURS = 64
_STATUS = "the other figures are kept"


def draw(claim: str) -> tuple[str, dict[Look, bytes]] | None:
    """The caption of a claim's figure, and the figure in each look; None without recorded data."""
    try:
        dataset = records.predicted_data(claim)
    except CellsMissing:
        return None
    caption, files = "", {}
    for look, dpi in _DPI.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a claim's figure repeats the warnings of its data
            try:
                with drawn_as(look):
                    figure = picture(registry.load(claim), dataset.copy(deep=True))
            except IndexError:  # the claim draws more into another panel than the first
                with drawn_as(replace(look, single=False)):
                    figure = picture(registry.load(claim), dataset.copy(deep=True))
                for panel in figure.axes[1:]:
                    panel.remove()
                figure.axes[0].set_subplotspec(figure.add_gridspec(1, 1)[0])
                figure.set_figheight(0.85 * figure.get_figwidth())
            files[look] = _fewer_colours(png_bytes(figure, dpi))
        caption = caption or getattr(figure, "caption", "")
    return caption, files


def _fewer_colours(png: bytes) -> bytes:
    """The picture with a palette, which takes a third of the bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
        buffer, "png", optimize=True
    )
    return buffer.getvalue()


def digest(claim: str) -> str:
    """The digest of the data that a claim's figure shows: the largest recorded size with data."""
    entries, kept = records.read(claim), records.groups(claim)
    size = [size for size in entries if size in kept][-1]
    return entries[size]["digest"]


def main(claims: list[str]) -> None:
    """Draw the figures of these claims, or of all."""
    path = FOLDER / "captions.json"
    captions = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    (FOLDER / "cards").mkdir(exist_ok=True)
    for claim in claims or registry.claims():
        drawn = draw(claim)
        if drawn is None:
            continue
        caption, files = drawn
        name = f"{claim.split('/')[1]}.png"
        write_atomically(FOLDER / name, files[PAGE], _STATUS)
        write_atomically(FOLDER / "cards" / name, files[CARD], _STATUS)
        captions[claim] = {"caption": caption, "data": digest(claim)}
        text = json.dumps(dict(sorted(captions.items())), indent=1, ensure_ascii=False) + "\n"
        write_atomically(path, text.encode(), _STATUS)
        print(claim, {look.width: len(png) for look, png in files.items()}, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
