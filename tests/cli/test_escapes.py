"""Text of strangers on a terminal: control characters, bidirectional overrides and line separators are escapes."""

import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from faults.processes import CLAIM, CLAIMS, STORE, strictly

from icllab.cli import streams
from icllab.core import errors
from icllab.core.spelling import printable
from icllab.lab import certificate, records, registry

CONTROLS = [*map(chr, [*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])]
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all of them but the end of a line
RECORDED = "asymptotics/double_descent"


def attack(rng):
    """A few control characters at random between letters, an escape sequence, and a forged line."""
    text = "".join(f"{character}x" for character in rng.choice(CONTROLS, 6))
    return f"a{text}\x1b[2J\x1b[Hb\nFORGED"


def forged(value, rng):
    """Every text, and the name of an additional field of every object, with control characters in it."""
    if isinstance(value, dict):
        return {name: forged(part, rng) for name, part in value.items()} | {attack(rng): attack(rng)}
    if isinstance(value, list):
        return [forged(part, rng) for part in value]
    return value + attack(rng) if isinstance(value, str) else value


def require_harmless(*texts):
    for text in texts:
        assert not ACTING.search(text), ascii(text)
        assert not any(line.lstrip().startswith("FORGED") for line in text.splitlines()), text


@pytest.mark.parametrize("character", CONTROLS)
def test_every_control_character_is_an_escape(character):
    text = printable(f"a{character}b")
    assert text.isprintable()
    assert text not in ("ab", f"a{character}b")
    assert printable("κ ± 1, é, 中 \\x1b") == "κ ± 1, é, 中 \\x1b"
    assert not ACTING.search(str(errors.InputError(f"a{character.replace(chr(10), '')}b")))


@pytest.mark.slow
def test_a_forged_certificate_writes_no_control_character(tmp_path, icl):
    rng = np.random.default_rng(7)
    file = tmp_path / "c.json"
    assert icl("certify", RECORDED, "-o", file)[0] == 0
    content = json.loads(file.read_text("utf-8"))
    named = {name: content[name] for name in ("claim", "size", "origin")}
    everywhere = certificate.sealed(forged(content, rng) | named)
    file.write_text(json.dumps(everywhere), "utf-8")
    for words in (("verify", file), ("verify", file, "--json")):
        status, out, err = icl(*words)
        assert status == 1
        require_harmless(out, err)
        assert "\\x1b[2J" in out or "--json" in words
    strictly(out)
    for name in named:
        file.write_text(json.dumps(certificate.sealed(content | {name: content[name] + attack(rng)})), "utf-8")
        status, out, err = icl("verify", file)
        assert status != 0
        require_harmless(out, err)


@pytest.mark.slow
def test_a_forged_record_writes_no_control_character(icl, monkeypatch):
    rng = np.random.default_rng(8)
    genuine = records.read(RECORDED)
    entry = genuine["small"] | {"machine": "m" + attack(rng), "command": attack(rng)}
    entry["findings"] = [finding | {"what": finding["what"] + attack(rng)} for finding in entry["findings"]]
    content = {"claim": records.about(registry.load(RECORDED)), "smoke": genuine["smoke"], "small": entry}
    for field in ("title", "sentence", "conditions"):
        content["claim"][field] += attack(rng)
    monkeypatch.setattr(records, "_content", lambda claim, folder: content)
    for words in (
        ("run", RECORDED, "--dry-run", "--out", "nowhere"),
        ("list", "--long", "--subject", "asymptotics"),
        ("list", "--subject", "asymptotics"),
        ("check", RECORDED, "--recorded"),
    ):
        status, out, err = icl(*words)
        assert status == 0, err
        require_harmless(out, err)
        if words[0] == "run" or "--long" in words:
            assert "\\x1b[2J" in out
        strictly(icl(*words, "--json")[1])


@pytest.mark.slow
def test_forged_results_and_paths_write_no_control_character(finished_run, tmp_path, icl):
    import xarray as xr

    rng = np.random.default_rng(9)
    place = tmp_path / ("out" + attack(rng).replace("/", "").replace("\x00", ""))
    shutil.copytree(finished_run, place)
    for command in (("check", CLAIM), ("export", CLAIM, "-o", place / "t.csv"), ("draw", CLAIM), ("list",)):
        _, out, err = icl(*command, "--claims", CLAIMS, "--out", place)
        require_harmless(out, err)
        assert "\\x1b[2J" in out or command == ("list",)
    dataset = xr.load_dataset(place / STORE / "results.nc")
    for name in list(dataset.attrs):
        if isinstance(dataset.attrs[name], str):
            dataset.attrs[name] += attack(rng).replace("\x00", "")
    dataset.to_netcdf(tmp_path / "forged.nc")
    for command in (("draw", tmp_path / "forged.nc"), ("export", tmp_path / "forged.nc", "-o", tmp_path / "t.csv")):
        status, out, err = icl(*command, "--claims", CLAIMS)
        require_harmless(out, err)
        assert status != 0 or command[0] == "export"
    for words in (("check", attack(rng)), ("run", attack(rng)), ("theory", attack(rng)), (attack(rng),)):
        status, out, err = icl(*words)
        assert status == 2
        require_harmless(out, err)


def test_warnings_and_prints_are_escaped_and_a_progress_line_is_not(capfd):
    with streams.usable():
        print("\x1b[31mred\x9b2J\u202e", file=sys.stderr)
        print(warnings.formatwarning("w\x1b[H", UserWarning, "f.py", 1), file=sys.stderr)
        sys.stderr.writelines(["two\tlines\n", "x\x07\n"])
        sys.stderr.write("\rhalf \u202e [##--]\x1b[K")
        sys.stderr.flush()
    err = capfd.readouterr().err
    assert err.startswith("\\x1b[31mred\\x9b2J\\u202e\n")
    assert "w\\x1b[H" in err
    assert "two\tlines\nx\\x07\n" in err
    assert err.endswith("\rhalf \\u202e [##--]\x1b[K")


def test_lines_of_answers_are_typeset_in_one_place():
    """A text that reaches rich by another way would keep its line separators."""
    files = Path(streams.__file__).parent.glob("*.py")
    users = [path.name for path in files if "import Text\n" in path.read_text("utf-8")]
    assert sorted(users) == ["reports.py", "streams.py"]
