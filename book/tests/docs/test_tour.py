"""The recorded terminal session prints what its commands print."""

import importlib.util
from pathlib import Path

import nbformat
import pytest

_spec = importlib.util.spec_from_file_location("make_tour", Path(__file__).parents[3] / "docs" / "make_tour.py")
make_tour = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_tour)
TEXT = make_tour.PAGE.read_text("utf-8")
COMMANDS = make_tour.commands(TEXT)
QUICK = ("theory", "check", "cite")


def test_the_tour_is_one_of_many_commands():
    assert len(COMMANDS) == TEXT.count("```console") >= 8
    assert str(Path(make_tour.__file__).parents[1]) not in TEXT


def test_the_notebook_is_the_page():
    """`docs/make_tour.py` writes both."""
    written = nbformat.read(make_tour.NOTEBOOK, as_version=4)
    nbformat.validate(written)
    assert written == make_tour.notebook(TEXT)
    cells = [(cell.source.removeprefix("!"), cell.outputs[0].text) for cell in written.cells if cell.get("outputs")]
    assert cells == COMMANDS
    words = [cell.source for cell in written.cells if cell.cell_type == "markdown"]
    assert "\n".join(words).split() == make_tour._BLOCK.sub("", TEXT).split()


@pytest.mark.parametrize(("command", "printed"), [pair for pair in COMMANDS if pair[0].split()[1] in QUICK])
def test_a_command_that_only_reads_prints_it_again(command, printed, tmp_path):
    assert make_tour.typed(command, tmp_path) == printed


@pytest.mark.slow
def test_all_of_them_print_it_again_in_one_folder(tmp_path):
    assert [make_tour.typed(command, tmp_path) for command, _ in COMMANDS] == [printed for _, printed in COMMANDS]
