"""The command line: one answer on stdout, JSON that any parser takes, an exit status by verdict."""

import math
import re
import shutil
import subprocess
import sys
import time

import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    ICL,
    STORE,
    check_command,
    finished,
    results,
    run_command,
    strictly,
)

import icllab
from icllab.cli import parameters, progress, reports
from icllab.lab import job

HEAVY = {"jax", "numpy", "scipy", "xarray", "matplotlib", "h5py"}


# What is loaded, and how fast it answers.


# A refusal, with its exit status, loads nothing that only an answer needs.
REFUSED = {
    "check nosuch/claim": 2,
    "cite nosuch/claim": 2,
    "export nosuch/claim --to nowhere.csv": 2,
    "check asymptotics/double_descent --out nowhere": 3,
}
# The commands that load least come first: all run in one process, which never forgets what it has loaded.
NOT_LOADED_BY = {
    "--help": HEAVY,
    "run --help": HEAVY,
    "--version": HEAVY,
    "__complete run asym": HEAVY,
    "__complete theory wish": HEAVY,
    "theory": HEAVY,
    **dict.fromkeys(REFUSED, HEAVY - {"numpy"}),
    "theory wishart.stieltjes q=1 kappa=2": {"jax", "xarray", "matplotlib"},
    "list": {"jax"},
    "cite asymptotics/double_descent": {"jax"},
    "arena": {"jax", "matplotlib"},
    "arena planted": {"jax", "matplotlib"},
}


def test_only_what_is_needed_is_imported():
    code = f"""
import sys
from icllab.cli import main
for command in {list(NOT_LOADED_BY)!r}:
    assert main(command.split()) == {REFUSED!r}.get(command, 0), command
    sys.stdout.flush()
    print(*sorted({{name.split(".")[0] for name in sys.modules}}), file=sys.stderr)
    print("after", command)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answers = re.split(r"^after .*\n", done.stdout, flags=re.MULTILINE)[:-1]
    loaded = [line for line in done.stderr.splitlines() if not line.startswith("icl: ")]
    for (command, absent), answer, names in zip(NOT_LOADED_BY.items(), answers, loaded, strict=True):
        assert bool(answer.strip()) == (REFUSED.get(command) != 2), command
        assert not set(names.split()) & absent, command


def test_completion_knows_commands_claims_and_formulas(icl):
    assert "asymptotics/double_descent" in icl("__complete", "run", "asym")[1].split()
    assert "wishart.stieltjes" in icl("__complete", "theory", "wishart.st")[1].split()


def test_completion_installs(tmp_path, icl):
    script = tmp_path / "icl.bash"
    assert icl("--install-completion", "--shell", "bash", "--output", script)[0] == 0
    assert "asymptotics/double_descent" not in script.read_text()  # asked for, not baked in
    assert all(name in script.read_text() for name in ("doctor", "--scheduler", "smoke"))


def test_help_and_version(icl):
    status, out, _ = icl("--help")
    assert status == 0
    for command in ("demo", "list", "run", "check", "draw", "theory", "cite", "export", "arena", "doctor"):
        assert command in out
        assert "--json" in icl(command, "--help")[1]
    assert icl("--version") == (0, f"icl-lab {icllab.__version__}\n", "")


def test_all_commands_and_jobs_agree_where_results_are_kept():
    """The commands have the name twice, since help does not import job."""
    assert parameters.OUT == job.OUT


# JSON.


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["run", CLAIM, "--size", "smoke"],
        ["check", CLAIM],
        ["draw", str(STORE)],
        ["theory"],
        ["theory", "linear_attention.icl_error", "tau=0.5,1", "alpha=1", "kappa=inf", "rho=0.1"],
        ["cite", CLAIM],
        ["export", str(STORE), "--to", "steady.csv"],
        ["doctor"],
        ["demo", "--nonsense"],
    ],
    ids=" ".join,
)
def test_json_is_one_object_and_nothing_else(words, ran, icl, monkeypatch):
    monkeypatch.chdir(ran)
    shutil.move(ran / "claims", ran / "icl-results" / "claims")
    if words[0] in ("draw", "export"):
        words = [words[0], f"icl-results/{words[1]}", *words[2:]]
    places = ["--claims", CLAIMS] if words[0] in ("list", "run", "check", "draw", "cite", "export") else []
    status, out, _ = icl(*words, *places, "--json")
    answer = strictly(out)
    assert answer["command"] == words[0]
    assert answer["exit_status"] == status == (2 if words[0] == "demo" else 0)


def test_what_json_cannot_spell_is_text():
    answer = reports.Report({"a": [math.inf, -math.inf, math.nan, 1.5]}, lambda console: None).as_json("test")
    assert strictly(answer)["a"] == ["inf", "-inf", "nan", 1.5]


def test_a_verdict_as_json(ran, icl):
    answer = strictly(icl("check", CLAIM, "--claims", CLAIMS, "--out", ran, "--json")[1])
    (claim,) = answer["claims"]
    assert claim["claim"] == CLAIM
    assert claim["verdict"] == "holds"
    assert (claim["size"], claim["control"]) == ("small", None)
    assert claim["results"] == str(ran / STORE)
    assert len(claim["findings"]) == 5
    for finding in claim["findings"]:
        assert set(finding) >= {"what", "predicted", "measured", "standard_error", "tolerance", "outcome"}
        assert abs(finding["measured"] - finding["predicted"]) <= finding["tolerance"]


# Running and checking.


def test_a_smoke_run_has_no_verdict(tmp_path, icl):
    places = ("--size", "smoke", "--claims", CLAIMS, "--out", tmp_path)
    status, out, _ = icl("run", CLAIM, *places)
    assert status == 0
    assert "not recorded; smoke is a regression test and gets no verdict" in out
    status, out, _ = icl("check", CLAIM, *places)
    assert (status, "UNDECIDED  no findings" in out) == (3, True)
    assert "smoke is a regression test without a verdict" in out


def test_a_run_for_people(tmp_path, icl):
    status, out, err = icl("run", CLAIM, "--size", "small", "--claims", CLAIMS, "--out", tmp_path)
    assert status == 0, err
    assert "What is measured is one half and a little noise." in out
    assert "HOLDS  5 of 5 findings hold" in out
    assert str(tmp_path / STORE / "figure.png") in out
    assert "a claim that prints" not in out
    assert "a claim that prints" in err
    assert "0 of 5 cells (begun)" in err
    assert "5 of 5 cells (dim=" in err
    for name in ("figure.png", "figure.pdf", "results.nc"):
        assert (tmp_path / STORE / name).stat().st_size > 0
    table = [line for line in out.splitlines() if "error = " in line]
    assert len(table) == 5
    assert all(len(line) <= 80 and "error = 0.5, dim=" in line and line.endswith("holds") for line in table)
    assert len({line.index(" ± ") for line in table}) == 1  # aligned


def test_verdicts_are_exit_statuses(tmp_path, icl):
    places = ["--claims", CLAIMS, "--out", tmp_path]
    assert icl("check", CLAIM, *places)[0] == 3  # nothing there
    assert icl("run", CLAIM, "--size", "small", "--control", "wrong", *places)[0] == 1
    assert icl("check", CLAIM, *places)[0] == 3  # a control is kept apart
    assert icl("check", CLAIM, "--control", "wrong", *places)[0] == 1
    status, out, _ = icl("run", CLAIM, "--size", "small", "--seeds", "1", *places)
    assert status == 3
    assert "UNDECIDED" in out
    assert "one seed shows no error" in out
    assert icl("run", CLAIM, "--size", "small", "--seeds", "12", *places)[0] == 0
    assert icl("check", CLAIM, *places)[0] == 0
    assert icl("check", CLAIM, "--size", "medium", *places)[0] == 3


def test_the_worst_of_several_claims_is_the_status(ran, tmp_path, icl):
    """4 > 1 > 3 > 0, each claim's own answer is there, and bad input comes before all."""
    other = tmp_path / "other" / "claims"
    other.mkdir(parents=True)
    text = (CLAIMS / "steady.py").read_text()
    (other / "steady.py").write_text(text)
    for name in ("fails", "missing"):
        (other / f"{name}.py").write_text(
            text.replace('full(dataset.sizes["dim"], 0.5)', 'full(dataset.sizes["dim"], 0.9)')
        )
    places = ["--claims", other, "--out", ran]
    assert icl("run", "claims/fails", "--size", "small", *places)[0] == 1

    def check(*names):
        status, out, _ = icl("check", *(f"claims/{name}" for name in names), "--json", *places)
        answer = strictly(out)
        assert answer["exit_status"] == status
        return status, [part["verdict"] for part in answer["claims"]] if "claims" in answer else answer["error"]["kind"]

    assert check("steady", "missing") == (3, ["holds", None])
    assert check("missing", "fails", "steady") == (1, [None, "fails", "holds"])
    assert check("steady", "mising") == (2, "input")
    (ran / STORE / "cells" / "dim=8.nc").write_bytes(b"")
    assert check("fails", "steady") == (4, ["fails", None])
    _, out, _ = icl("check", "claims/fails", "claims/steady", *places)
    assert "FAILS" in out
    assert "dim=8.nc" in out


def test_a_run_extends_what_is_there(ran, icl):
    def run(*words):
        return strictly(icl(*run_command(ran, "--json", *words)[3:])[1])["cells"]

    assert run() == {"computed": 0, "kept": 5}
    assert run("--set", "dim=2,64") == {"computed": 1, "kept": 1}
    assert run("--seeds", "8") == {"computed": 5, "kept": 0}
    assert run("--seeds", "3") == {"computed": 0, "kept": 5}
    assert len(strictly(icl(*check_command(ran, "--json")[3:])[1])["claims"][0]["findings"]) == 6


def test_the_command_line_beats_the_file(tmp_path, icl):
    path = tmp_path / "run.toml"
    path.write_text(
        f"size = 'smoke'\nseeds = 3\nout = '{tmp_path}'\nclaims = '{CLAIMS}'\n[set]\ndim = [2, 4]\nridge = 0.0\n"
    )
    answer = strictly(icl("run", CLAIM, "--config", path, "--json")[1])
    assert answer["cells"] == {"computed": 2, "kept": 0}
    assert answer["size"] == "smoke"
    answer = strictly(icl("run", CLAIM, "--config", path, "--json", "--set", "dim=8", "--seeds", "2")[1])
    assert answer["cells"] == {"computed": 1, "kept": 0}


def test_draw_takes_a_claim_as_every_command_does(ran, tmp_path, icl):
    (ran / STORE / "figure.png").unlink()
    assert icl("draw", CLAIM, "--claims", CLAIMS, "--out", ran)[0] == 0
    assert (ran / STORE / "figure.png").stat().st_size > 0
    assert (
        icl("draw", CLAIM, "--size", "small", "--claims", CLAIMS, "--out", ran, "--to", tmp_path / "here.pdf")[0] == 0
    )
    assert (tmp_path / "here.pdf").stat().st_size > 0
    status, _, err = icl("draw", CLAIM, "--size", "medium", "--claims", CLAIMS, "--out", ran)
    assert (status, "expected results under" in err) == (3, True)
    status, _, err = icl("draw", "claims/stady", "--claims", CLAIMS)
    assert status == 2
    assert "did you mean 'claims/steady'? (or a directory of results, or a .nc file)" in err
    status, _, err = icl("draw", ran / STORE, "--size", "smoke", "--claims", CLAIMS)
    assert (status, "expected a size and a control with a claim" in err) == (2, True)


def test_draw_for_a_paper_and_several_in_one(ran, tmp_path, icl):
    asked = ("--claims", CLAIMS, "--out", ran, "--style", "paper", "--to", tmp_path / "figure")
    status, out, err = icl("draw", CLAIM, *asked, "--width", "82mm", "--json")
    assert (status, strictly(out)["claim"]) == (0, CLAIM), err
    png = (tmp_path / "figure.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == pytest.approx(82 / 25.4 * 300, abs=1)
    status, _, err = icl("draw", CLAIM, ran / STORE, *asked)  # its figure is matplotlib's own
    assert (status, "expected a figure of icllab.figures.panels, to join it with others" in " ".join(err.split())) == (
        2,
        True,
    )
    two = ["asymptotics/double_descent", "descent/best_step"]
    status, out, err = icl("draw", *two, "--recorded", *asked, "--json")
    answer = strictly(out)
    assert (status, answer["claims"], answer["results"]) == (0, two, two), err
    assert int.from_bytes((tmp_path / "figure.png").read_bytes()[16:20], "big") == 6.75 * 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "icl draw: expected at least one claim, got none; `icl list` names them"),
        ([CLAIM, CLAIM], "icl draw: expected --to with several claims, got none"),
        ([CLAIM, "--width", "3.25"], "width: expected a length of 1.5in to 40in with its unit"),
        ([CLAIM, "--style", "papr"], "papr"),
    ],
)
def test_draw_refuses_in_one_line(words, message, ran, icl):
    status, _, err = icl("draw", *words, "--claims", CLAIMS, "--out", ran)
    assert status == 2
    assert message in " ".join(err.split())


def test_draw_takes_a_store_wherever_it_is(ran, tmp_path, icl):
    moved = tmp_path / "elsewhere"
    shutil.copytree(ran / STORE, moved)
    for path in (ran / STORE, moved, moved / "results.nc"):
        status, _, err = icl("draw", path, "--to", tmp_path / "drawn" / "figure.pdf", "--claims", CLAIMS)
        assert status == 0, err
        assert (tmp_path / "drawn" / "figure.png").stat().st_size > 0
        shutil.rmtree(tmp_path / "drawn")


def test_a_moved_store_has_all_that_was_asked_for(tmp_path, icl):
    """And not what the last run asked for."""
    ask = ("run", CLAIM, "--size", "small", "--claims", CLAIMS, "--out", tmp_path / "out")
    assert icl(*ask)[0] == 0
    assert icl(*ask, "--set", "dim=2", "--seeds", "2")[0] in (0, 3)
    moved = shutil.copytree(tmp_path / "out" / STORE, tmp_path / "elsewhere")
    for i, path in enumerate((tmp_path / "out" / STORE, moved)):
        assert icl("export", path, "--to", tmp_path / f"{i}.csv", "--claims", CLAIMS)[0] == 0
    assert (tmp_path / "0.csv").read_bytes() == (tmp_path / "1.csv").read_bytes()
    (moved / "cells" / "dim=4.nc").unlink()
    status, _, err = icl("export", moved, "--to", tmp_path / "2.csv", "--claims", CLAIMS)
    assert (status, "1 are missing" in err) == (3, True)


@pytest.mark.parametrize("option", ["--seeds", "--workers"])
@pytest.mark.parametrize("value", ["2.7", "3.0", "1e1", "two"])
def test_a_number_of_things_is_an_integer(option, value, tmp_path, icl):
    status, _, err = icl("run", CLAIM, "--claims", CLAIMS, "--out", tmp_path, option, value)
    assert status == 2
    assert f"{option}: expected an integer, got {value!r}" in err


def test_cite(icl):
    status, out, _ = icl("cite", CLAIM, "--claims", CLAIMS)
    assert status == 0
    assert out.startswith("@article{Lu24,\n")
    assert out.endswith("}\n")
    _, out, _ = icl("cite", CLAIM, "--claims", CLAIMS, "--text")
    assert out.startswith("Yue M. Lu")
    assert out.count("\n") == 1


# Terminals and progress.


def test_on_a_terminal_the_progress_is_a_live_bar(tmp_path, on_terminal, monkeypatch):
    # The bar is drawn ten times a second.
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "STEADY_PAUSE": "0.2"}.items():
        monkeypatch.setenv(name, value)
    status, out, shown = on_terminal(*run_command(tmp_path, "--json")[len(ICL) :])
    assert (status, strictly(out)["verdict"]) == (0, "holds")
    assert b"5 of 5 cells" in shown
    assert b"s left" in shown


def test_cells_that_were_there_have_no_pace():
    pace = progress._Pace()
    assert [pace.text(now, 40, 100, 30.0) for now in (0.0, 5.0)] == ["", ""]
    assert pace.text(10.0, 45, 100, 110.0).startswith("30 a minute, ")
    assert pace.text(60.0, 100, 100, 0.0) == ""


def test_progress_lines_are_few_and_say_what_is_left(monkeypatch, capsys):
    clock = iter(float(i) for i in range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = progress._Lines("claim")
    for done in range(40, 101):  # 40 were kept; then one a second
        lines(done, 100, f"dim={done}", None if done == 40 else float(100 - done))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "claim: 40 of 100 cells (dim=40)"
    assert said[1] == "claim: 50 of 100 cells, 60 a minute, 50 s left (dim=50)"
    assert said[-1] == "claim: 100 of 100 cells (dim=100)"
    assert len(said) == 7


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.123456, 0.00123, "0.1235 ± 0.0012"),
        (12.3456, 0.5, "12.35 ± 0.50"),
        (1234.5, 67.0, "1234 ± 67"),
        (1.0, 0.0, "1"),
        (math.nan, math.inf, "nan ± inf"),
        (1e-9, 2e-10, "1e-09 ± 2e-10"),
        (3.0, 1e4, "3 ± 1e+04"),
    ],
)
def test_a_number_has_the_digits_its_error_allows(value, error, text):
    assert reports.with_error(value, error) == text


# Minutes.


@pytest.mark.slow
def test_the_demo_shows_a_claim_that_does_not_fail(tmp_path):
    start = time.monotonic()
    done = finished([*ICL, "demo", "--out", str(tmp_path)], timeout=600)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert "asymptotics/double_descent" in done.stdout
    assert (tmp_path / "asymptotics" / "double_descent" / "small" / "figure.png").is_file()
    assert time.monotonic() - start < 180


@pytest.mark.slow
def test_a_dask_scheduler_computes_the_same(ran, tmp_path):
    other = tmp_path / "dask"
    code = """
import subprocess, sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        sys.exit(subprocess.run([*sys.argv[1:], "--scheduler", cluster.scheduler_address]).returncode)
"""
    script = tmp_path / "cluster.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script), *run_command(other)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert results(other).equals(results(ran))


def test_a_scheduler_that_is_not_there(tmp_path, icl):
    for address in ("nonsense://nowhere:1", ""):
        status, _, err = icl("run", CLAIM, "--claims", CLAIMS, "--out", tmp_path, "--scheduler", address)
        assert status == 2
        assert "scheduler: expected an address such as tcp://127.0.0.1:8786" in err
    status, _, err = icl("run", CLAIM, "--claims", CLAIMS, "--out", tmp_path, "--scheduler", "tcp://127.0.0.1:1:1")
    assert status == 4
    assert "expected a dask scheduler at 'tcp://127.0.0.1:1:1'" in err
    status, _, err = icl("run", CLAIM, "--claims", CLAIMS, "--scheduler", "tcp://nowhere:1", "--workers", "2")
    assert status == 2
    assert "expected one of workers, scheduler and executor, got several" in err


# Panels of the help, and names that moved.

VISITORS = ["demo", "examine", "list", "run", "check", "draw", "theory", "cite", "page", "report", "export", "doctor"]
MAKERS = ["claim", "arena", "certify", "verify", "posteriors"]


def test_help_has_a_panel_for_visitors_and_one_for_makers_of_claims(icl):
    _, out, _ = icl("--help")
    first, _, second = out.partition("For makers of claims")
    assert re.findall(r"^│ ([a-z]+) ", first, re.MULTILINE) == VISITORS
    assert re.findall(r"^│ ([a-z]+) ", second, re.MULTILINE) == MAKERS
    _, out, _ = icl("claim", "--help")
    assert re.findall(r"^│ ([a-z]+) ", out, re.MULTILINE) == ["new", "conform", "add", "cost", "submit"]


@pytest.mark.parametrize("name", ["new", "conform", "add", "cost", "submit"])
@pytest.mark.parametrize("more", [[], ["x"], ["--help"], ["x", "--json"]], ids=" ".join)
def test_an_old_name_says_the_new_one(name, more, icl):
    status, out, err = icl(name, *more)
    assert status == 2
    assert err == f"icl {name}: expected `icl claim {name}`, its name since version 0.4, got the old name\n"
    assert bool(out) == ("--json" in more)


def test_json_names_a_subcommand(icl):
    for words in (["claim", "cost", "nosuch/claim", "--json"], ["--json", "claim", "cost", "nosuch/claim"]):
        answer = strictly(icl(*words)[1])
        assert (answer["command"], answer["exit_status"]) == ("claim cost", 2)
    assert "unknown command of icl claim: 'cots'; did you mean 'cost'?" in icl("claim", "cots")[2]
