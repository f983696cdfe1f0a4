"""Explorers as data: controls with their ranges, what is refused, and answers that are ready for JSON."""

import contextlib
import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import icllab.page
from icllab.core.errors import InputError
from icllab.page.explorers import EXPLORERS
from icllab.page.explorers.declaration import Choice, plain

VENDOR = Path(icllab.page.__file__).parent / "static" / "vendor"


@pytest.mark.parametrize("id", EXPLORERS)
def test_a_declaration_and_an_answer_are_ready_for_json(id):
    explorer = EXPLORERS[id]
    declared = json.loads(json.dumps(explorer.declaration(), allow_nan=False))
    assert declared["id"] == id == explorer.id
    assert [control["name"] for control in declared["controls"]] == [control.name for control in explorer.controls]
    answer = explorer.answer()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for curve in answer["curves"]:
        assert len(curve["x"]) == len(curve["y"]) > 1
        assert (np.diff(curve["x"]) > 0).all()
    if "map" in answer:
        content = answer["map"]
        assert np.shape(content["z"]) == (len(content["x"]), len(content["y"]))
        assert (np.diff(content["x"]) > 0).all()
        assert (np.diff(content["y"]) > 0).all()
    assert explorer.view in answer


@pytest.mark.parametrize("id", EXPLORERS)
def test_every_control_changes_the_answer(id):
    explorer, before = EXPLORERS[id], EXPLORERS[id].answer()
    for control in explorer.controls:
        others = list(control.options)[::-1] if isinstance(control, Choice) else (control.values[-1], control.values[0])
        for other in others:
            with contextlib.suppress(InputError):  # an end that the other controls exclude
                if explorer.answer(**{control.name: other}) != before:
                    break
        else:
            pytest.fail(f"{control.name} has no effect")


@pytest.mark.parametrize("id", EXPLORERS)
def test_values_may_be_text_and_others_are_refused_in_one_line(id):
    explorer = EXPLORERS[id]
    starts = {control.name: control.start for control in explorer.controls}
    assert explorer.answer(**{name: str(value) for name, value in starts.items()}) == explorer.answer()
    with pytest.raises(ValueError, match=f"unknown control of {id} 'nothing'"):
        explorer.answer(nothing=1)
    for control in explorer.controls:
        wrong = ["", "nothing", None, [1]]
        if not isinstance(control, Choice):
            low, high = control.values[0], control.values[-1]
            wrong += [low - 1, high + 1, high * (1 + 1e-9), math.nan, "inf", "-inf", True, 10**400]
            wrong += [low + 0.5] if control.integer else []
            assert list(control.values) == sorted(set(control.values))
            assert low <= control.start <= high
        for value in wrong:
            with pytest.raises(ValueError, match=control.name) as caught:
                explorer.answer(**{control.name: value})
            assert "\n" not in str(caught.value)


def test_marks_stand_where_the_sliders_are():
    for id, values, mark in (
        ("linear_attention", {"x": "rho", "rho": 0.3}, 0.3),
        ("linear_attention", {"x": "ridge"}, None),  # zero has no place on the axis
        ("learning_coefficients", {"x": "rank", "rank": 0}, 0),
        ("free_energies", {"x": "constant"}, 0),
        ("induction_landscape", {"moment": 0.75, "time": 40}, 30),
    ):
        assert EXPLORERS[id].answer(**values)["axes"]["mark"] == mark


def test_the_scale_of_a_slider_is_logarithmic_where_its_range_is_long():
    assert {slider.name: slider.scale for slider in EXPLORERS["preconditioner"].controls[1:]} == {
        "length": "log",
        "dim": "linear",
        "exponent": "linear",
        "power": "linear",
        "noise": "log",
    }


@pytest.mark.parametrize("id", EXPLORERS)
def test_the_page_of_the_theory_is_there(id):
    assert (Path(__file__).parents[2] / "docs" / f"{EXPLORERS[id].more}.md").is_file()


def test_what_is_not_finite_is_none_throughout():
    given = {"a": np.array([[1.0, np.inf]]), "b": (np.float64(np.nan), 2), "c": "text"}
    assert plain(given) == {"a": [[1.0, None]], "b": [None, 2], "c": "text"}


def test_explorers_never_import_jax():
    script = (
        "import sys; from icllab.page.explorers import EXPLORERS\n"
        "for one in EXPLORERS.values(): one.declaration(); one.answer()\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'equinox', 'xarray', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_vendored_files_are_those_that_are_named():
    manifest = json.loads((VENDOR / "manifest.json").read_text("utf-8"))
    named = {name: digest for one in manifest.values() for name, digest in one["files"].items()}
    files = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert set(named) == files - {"manifest.json"}
    for name, digest in named.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    for library, one in manifest.items():
        assert any(name.endswith("LICENSE") for name in one["files"]), library
        script = next(VENDOR / name for name in one["files"] if name.endswith(".js")).read_text("utf-8")
        assert re.search(rf'\(v{one["version"]}\)|version:"{one["version"]}"', script), library
