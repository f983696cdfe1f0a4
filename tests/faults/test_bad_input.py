"""What cannot be used is refused in one line that names the nearest thing that could, with status 2."""

import json

import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    ICL,
    STORE,
    check_command,
    complaint,
    finished,
    inside,
    measured,
    run_command,
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean 'run'?"),
        (["run", CLAIM, "--sise", "smoke"], "unknown option of icl run: '--sise'; did you mean '--size'?"),
        (["run", CLAIM, "--size", "smal"], "unknown value of --size: 'smal'; did you mean 'small'?"),
        (["run", CLAIM, "--seeds", "many"], "--seeds: expected an integer, got 'many'"),
        (["run", CLAIM, "--workers"], "expected a value for --workers, got none"),
        (["run"], "expected a value for CLAIM, got none"),
        (["run", CLAIM, "again"], "expected no further words, got 'again'"),
        (["run", "claims/stedy"], "unknown claim 'claims/stedy'; did you mean 'claims/steady'?"),
        (["run", CLAIM, "--set", "dmi=3"], "unknown axis of claims/steady 'dmi'; did you mean 'dim'?"),
        (["run", CLAIM, "--set", "dim=4,x"], "dim: expected an integer, got 'x'"),
        (["run", CLAIM, "--set", "dim=2.5"], "dim: expected an integer, got '2.5'"),
        (["run", CLAIM, "--set", "dim=2,2"], "dim: expected values that differ"),
        (["run", CLAIM, "--set", "dim"], "--set: expected axis=value or axis=value,value, got 'dim'"),
        (["run", CLAIM, "--set", "rho=1,2"], "rho: expected one value, since it is fixed in this claim"),
        (["run", CLAIM, "--set", "rho=-1"], "rho: expected a number >= 0, got -1"),
        (["run", CLAIM, "--set", "dim=4,0"], "dim: expected a number >= 1, got 0"),
        (["run", CLAIM, "--set", "ridge=-0.5"], "ridge: expected a number >= 0, got -0.5"),
        (["run", CLAIM, "--seeds", "0"], "seeds: expected an integer from 1 to 1000000, got 0"),
        (["run", CLAIM, "--workers", "0"], "workers: expected an integer of at least 1, got 0"),
        (["run", CLAIM, "--size", "full"], "unknown size of claims/steady 'full'; known: small, smoke"),
        (["run", CLAIM, "--control", "rong"], "unknown control of claims/steady 'rong'; did you mean 'wrong'?"),
        (["check", CLAIM, "claims/stedy"], "unknown claim 'claims/stedy'; did you mean 'claims/steady'?"),
        (["check"], "expected at least one claim, got none"),
        (["cite", "steady"], "unknown claim or source 'steady'; near are claims/steady,"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_line_says_what_was_expected_and_what_came(words, said, tmp_path, capfd):
    places = ["--out", str(tmp_path)] if words[0] in ("run", "check") else []
    command = [*ICL, *words, *places, *(["--claims", str(CLAIMS)] if words[0] != "rnu" else [])]
    status, out, err = inside(capfd, command)
    assert status == 2
    assert out == ""
    assert said in complaint(err)
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_process_says_the_same(tmp_path):
    done = finished([*ICL, "run", CLAIM, "--sise", "smoke"])
    assert done.returncode == 2
    assert done.stderr == "icl: unknown option of icl run: '--sise'; did you mean '--size'?\n"


def test_with_json_stdout_holds_the_error_and_nothing_else(tmp_path, capfd):
    status, out, err = inside(capfd, run_command(tmp_path, "--json", "--set", "dmi=3"))
    answer = json.loads(out)
    assert status == answer["exit_status"] == 2
    assert answer["command"] == "run"
    assert answer["error"]["kind"] == "input"
    assert answer["error"]["message"] in complaint(err)


def test_a_store_of_another_configuration_is_refused_with_the_difference(tmp_path, capfd):
    assert inside(capfd, run_command(tmp_path))[0] == 0
    status, _, err = inside(capfd, run_command(tmp_path, "--set", "rho=0.25"))
    assert status == 2
    assert "fixed.rho is 0.5 there and 0.25 here; choose another --out, or --fresh" in complaint(err)
    # --fresh sets the old ones aside, whole.
    status, out, _ = inside(capfd, run_command(tmp_path, "--set", "rho=0.25", "--fresh", "--json"))
    answer = json.loads(out)
    assert status == 1  # predicted: one half
    assert answer["cells"] == {"computed": 5, "kept": 0}
    (aside,) = (tmp_path / CLAIM).glob("small.before-*")
    assert any(str(aside) in note for note in answer["notes"])
    assert len(list((aside / "cells").glob("*.nc"))) == 5
    # What is read back is judged under the configuration it was measured under.
    assert inside(capfd, check_command(tmp_path))[0] == 1


def test_input_that_only_a_cell_can_refuse_is_not_tried_again_and_leaves_no_trace(tmp_path, log, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "refuse:0.25")
    for words, count in (([], 5), (["--shard", "1/2"], 3)):
        status, _, err = inside(capfd, run_command(tmp_path, "--set", "rho=0.25", *words))
        assert status == 2
        assert f"{count} of {count} cells failed, 0 are kept; the first, dim=2: rho: expected" in complaint(err)
        assert len(measured(log)) == count
        log.unlink()
        assert not (tmp_path / STORE / "failures").exists()
    # The store is nobody's yet: the right value needs no --fresh.
    assert inside(capfd, run_command(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sise = 'smoke'", "unknown option in {path}: 'sise'; did you mean 'size'?"),
        ("seeds = 'two'", "{path}: seeds: expected an integer, got 'two'"),
        ("seeds = true", "{path}: seeds: expected an integer, got True"),
        ("set = 3", "{path}: set: expected a table of axes, got 3"),
        ("[set]\ndim = [2, {}]", "{path}: set.dim: expected a number, a name, or a list of them, got [2, {{}}]"),
        ("size = ", "--config: expected TOML in {path}"),
        (None, "--config: expected a TOML file, got '{path}'"),
    ],
)
def test_a_configuration_file_is_held_to_the_same_names(content, said, tmp_path, capfd):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_text(content)
    status, _, err = inside(capfd, [*ICL, "run", CLAIM, "--claims", str(CLAIMS), "--config", str(path)])
    assert status == 2
    assert said.format(path=path) in complaint(err)
    assert err.count("\n") == 1
