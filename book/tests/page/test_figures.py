"""The figures of the book show the data of its records."""

import json
from pathlib import Path

import pytest

import iclbook
from icllab.lab import records, registry
from icllab.lab.claim import SIZES

FIGURES = Path(iclbook.__file__).parent / "figures"
CAPTIONS = json.loads((FIGURES / "captions.json").read_text("utf-8"))


@pytest.mark.parametrize("claim", registry.claims())
def test_a_figure_and_its_card_are_of_the_recorded_data(claim):
    """Of other data: ``python docs/make_figures.py CLAIM`` draws it anew."""
    entries, kept = records.read(claim), records.groups(claim)
    sizes = [size for size in entries if size in kept and size != SIZES[0]]
    assert (claim in CAPTIONS) == bool(sizes)
    if sizes:
        assert CAPTIONS[claim]["data"] == entries[sizes[-1]]["digest"]
        assert CAPTIONS[claim]["caption"].endswith(".")
        for folder in (FIGURES, FIGURES / "cards"):
            assert (folder / f"{claim.split('/')[1]}.png").is_file()


def test_no_caption_is_of_an_unknown_claim():
    assert set(CAPTIONS) <= set(registry.claims())
