"""The code of the first page runs without a warning, and prints what the page says of it."""

import re
import warnings
from pathlib import Path

import jax

PAGE = Path(__file__).parents[3].joinpath("docs", "quickstart.md").read_text("utf-8")
CELLS = re.findall(r"```\{code-cell\} python\n(.*?)```", PAGE, re.DOTALL)


def test_the_quickstart_runs_without_a_warning(capsys):
    assert len(CELLS) >= 4
    names = {}
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("error")
        for cell in CELLS:
            exec(compile(cell, "quickstart.md", "exec"), names)
    table = names["table"]
    assert table.notna().all(axis=None)
    assert (table["ridge"] <= table["one step"]).all()
    trained, least = (float(value) for value in re.findall(r"(?:trained|least): +([\d.]+)", capsys.readouterr().out))
    assert least - 0.02 < trained < least + 0.05
