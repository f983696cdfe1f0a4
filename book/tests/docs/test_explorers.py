"""What the documentation's explorers look up is what the page's explorers answer."""

import base64
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.page.explorers import EXPLORERS

DOCS = Path(__file__).parents[3] / "docs"
_spec = importlib.util.spec_from_file_location("make_explorers", DOCS / "make_explorers.py")
make_explorers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_explorers)


def array(data, index, columns, exact):
    values = np.frombuffer(base64.b64decode(data["pool"][index]), np.float64 if exact else np.float32)
    return values.reshape(-1, columns) if columns else values


def looked_up(data, point):
    """The answer at a point of the grid; a text where there is none."""
    at = 0
    for name, values in data["grid"].items():
        at = at * len(values) + values.index(point[name])
    template, leaves = data["answers"][at]
    if isinstance(template, str):
        return template

    def filled(part):
        if isinstance(part, dict):
            return {name: filled(one) for name, one in part.items()}
        if isinstance(part, list) and len(part) == 1 and isinstance(part[0], int):
            leaf = leaves[part[0]]
            return array(data, *leaf) if isinstance(leaf, list) else leaf
        return [filled(one) for one in part] if isinstance(part, list) else part

    return filled(data["templates"][template])


def require_same(found, wanted):
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            require_same(found[name], wanted[name])
    elif isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        for one, other in zip(found, wanted, strict=True):
            require_same(one, other)
    elif isinstance(wanted, str) or wanted is None:
        assert found == wanted
    else:
        np.testing.assert_allclose(np.array(found, float), np.array(wanted, float), rtol=1e-7, atol=1e-37)


GRIDS = {
    "linear_attention": {"x": ("tau", "alpha"), "tau": (1, 3), "ridge": (0, 0.1)},
    "induction_landscape": {"moment": (0.25, 1), "pairs": (4, 8), "labels": (4,), "time": (20,)},
    "preconditioner": {"x": ("length", "exponent"), "power": (-1, 0)},
    "saddles": {"x": ("time", "length"), "exponent": (0, 1), "length": (5, 31), "start": (0.01, 0.1)},
    "learning_coefficients": {"x": ("hidden", "n"), "rank": (0, 5)},
    "normal_crossing": {"x": ("k1", "n"), "k1": (1, 2)},
    "free_energies": {"x": ("n", "gap"), "gap": (0.001, 0.1)},
}


@pytest.mark.parametrize("id", EXPLORERS)
def test_every_point_of_a_grid_has_its_own_answer(id):
    explorer, grid = EXPLORERS[id], GRIDS[id]
    data = json.loads(json.dumps(make_explorers.data(explorer, grid), allow_nan=False))
    points = [{}]
    for name, values in grid.items():
        points = [{**point, name: value} for point in points for value in values]
    refused = 0
    for point in points:
        found = looked_up(data, point)
        if isinstance(found, str):
            with pytest.raises(InputError, match=re.escape(found)):
                explorer.answer(**point)
            refused += 1
        else:
            require_same(found, make_explorers.thinned(explorer.answer(**point)))
    assert refused < len(points)
    assert bool(refused) == (id in ("induction_landscape", "learning_coefficients"))


def test_a_thinned_answer_has_every_second_point_and_both_ends():
    answer = EXPLORERS["linear_attention"].answer()
    less = make_explorers.thinned(answer)
    for one, other in zip(less["curves"], answer["curves"], strict=True):
        assert set(zip(one["x"], one["y"], strict=True)) <= set(zip(other["x"], other["y"], strict=True))
        assert (one["x"][0], one["x"][-1]) == (other["x"][0], other["x"][-1])
        assert len(one["x"]) <= len(other["x"]) / 2 + 1
    whole, part = answer["map"], less["map"]
    for i, x in enumerate(part["x"]):
        row = whole["z"][whole["x"].index(x)]
        assert part["z"][i] == [row[whole["y"].index(y)] for y in part["y"]]


def test_the_grids_of_the_documentation_are_of_every_explorer_within_its_ranges():
    assert set(make_explorers.GRIDS) == set(EXPLORERS)
    for id, grid in make_explorers.GRIDS.items():
        controls = {control.name: control for control in EXPLORERS[id].controls}
        for name, values in grid.items():
            assert [controls[name].read(value) for value in values] == list(values)
            assert isinstance(values[0], str) or list(values) == sorted(values)
        for name, start in make_explorers.STARTS.get(id, {}).items():
            assert start in grid[name]
    page = (DOCS / "explorers.md").read_text("utf-8")
    assert re.findall(r'data-explorer="(\w+)"', page) == [*EXPLORERS, "prompt"]


def test_texts_are_read_with_every_head_where_there_is_a_model_and_else_there_is_no_data(tmp_path, monkeypatch):
    from icllab.page import prompt_worker

    def read(path, text, size, block, head):
        block, head = (1, 0) if block is None else (block, head)
        pattern = [[1.0], [block / 4, head / 4]]
        answer = {"tokens": ["a", "b"], "loss": [None, 1.00001], "alone": [None, float(size)], "blocks": 2, "heads": 3}
        return answer | {"block": block, "head": head, "pattern": pattern, "scores": {"previous": [1, 2, 0.75]}}

    monkeypatch.setattr(prompt_worker, "read", read)
    make_explorers.write(tmp_path / "docs", {}, tmp_path)
    data = (tmp_path / "docs" / "_static" / "explorers" / "prompt.js").read_text("utf-8")
    assert re.fullmatch(
        r'window\.iclExplorers\.prompt = \{"absent":"This documentation was built without[^"]+"\};\n', data
    )
    (tmp_path / make_explorers.MODEL).mkdir()
    content = json.loads(json.dumps(make_explorers.prompts(tmp_path)))
    assert list(content["answers"]) == list(content["texts"].values())
    for answer in content["answers"].values():
        assert (answer["loss"], answer["block"], answer["head"]) == ([None, 1.0], 1, 2)
        assert answer["alone"] == {str(size): [None, size] for size in make_explorers.SIZES}
        pattern = np.frombuffer(base64.b64decode(answer["pattern"]), np.uint8).reshape(2, 3, 3) / 255
        np.testing.assert_allclose(pattern[..., 1], np.broadcast_to([[0], [0.25]], (2, 3)), atol=0.002)
        np.testing.assert_allclose(pattern[..., 2], np.broadcast_to([0, 0.25, 0.5], (2, 3)), atol=0.002)


def test_the_modules_become_one_script():
    text = make_explorers.bundle()
    assert not re.search(r"^(import|export)\b|import\.meta|fetch\(", text, re.MULTILINE)
    for name in make_explorers.MODULES:
        assert f"modules.{name} = " in text
