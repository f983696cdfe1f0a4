"""Files of a figure: both kinds, whole or not at all, the same bytes in every process."""

import hashlib
import os
import subprocess
import sys

import pytest

from icllab.core.errors import EnvironmentFault
from icllab.figures import Drawing, png_bytes, save

SCRIPT = """
import sys
import xarray as xr
from icllab.figures import save
from icllab.figures.curves import curves
values = (("tau", "seed"), [[1.0, 2.0], [3.0, 5.0]])
data = xr.Dataset({"icl_error": values}, coords={"tau": [0.5, 2.0], "seed": [0, 1]})
save(curves(data, x="tau", y="icl_error"), sys.argv[1])
"""


@pytest.fixture
def figure():
    import xarray as xr

    from icllab.figures.curves import curves

    data = xr.Dataset({"icl_error": (("tau",), [1.0, 2.0])}, coords={"tau": [0.5, 2.0]})
    return curves(data, x="tau", y="icl_error")


def test_two_processes_write_the_same_bytes(tmp_path, monkeypatch):
    """This one and a new one, of another seed of hashes."""
    here, other = tmp_path / "here" / "curve", tmp_path / "other" / "curve"
    subprocess.run([sys.executable, "-c", SCRIPT, str(other)], check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    monkeypatch.setattr(sys, "argv", ["", str(here)])
    exec(SCRIPT, {})
    digests = [
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(stem.parent.iterdir())]
        for stem in (here, other)
    ]
    assert len(digests[0]) == 2
    assert digests[0] == digests[1]


def test_png_and_pdf_beside_each_other_with_fonts_embedded(tmp_path, figure):
    png, pdf = save(figure, tmp_path / "room" / "tau=1.5")
    assert sorted(p.name for p in png.parent.iterdir()) == ["tau=1.5.pdf", "tau=1.5.png"]
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # Type 42 (TrueType) fonts, not the outlines (type 3) that some publishers refuse.
    assert b"/FontFile2" in pdf.read_bytes()
    assert b"/Type3" not in pdf.read_bytes()
    assert b"CreationDate" not in pdf.read_bytes()
    width = int.from_bytes(png.read_bytes()[16:20], "big")
    assert width == round(3.4 * 300)


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path, figure):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault) as caught:
        save(figure, tmp_path / "file" / "curve")
    assert str(caught.value).startswith("cannot write the figure ")
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_drawing_shows_itself_in_a_notebook():
    def drawn():
        drawing = Drawing(width=1.0, height=0.5)
        drawing.subplots().plot([0, 1])
        return drawing

    assert drawn()._repr_png_() == png_bytes(drawn())
    assert drawn()._repr_png_()[1:4] == b"PNG"
    assert tuple(drawn().get_size_inches()) == (1.0, 0.5)


BACKEND = """
import os, sys
{first}
from icllab.figures import Drawing, png_bytes
assert png_bytes(Drawing(width=1.0, height=1.0))[1:4] == b"PNG"
import matplotlib
print(os.environ["MPLBACKEND"], matplotlib.get_backend(auto_select=False))
"""


@pytest.mark.parametrize("first", ["", "from icllab.figures import style; style.colours([1, 2])"])
@pytest.mark.parametrize(("backend", "kept"), [("Qt4Agg", False), ("module://nosuch.backend", True), ("svg", True)])
def test_figures_need_no_backend_of_the_caller(backend, kept, first):
    """One that matplotlib does not know breaks its import; one that it knows stays the user's."""
    environment = {**os.environ, "MPLBACKEND": backend}
    command = [sys.executable, "-c", BACKEND.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    variable, chosen = done.stdout.split()
    assert variable == backend
    assert (chosen == backend) == kept
