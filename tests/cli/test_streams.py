"""Standard streams of any encoding and width, closed, broken or full: the answer, or one line that says why not."""

import os
import subprocess

import pytest
from faults.processes import CLAIM, CLAIMS, ICL, STORE, check_command, complaint, environment, run_command, strictly

from icllab.cli import streams

FORMULA = ["theory", "linear_attention.icl_error", "tau=2", "alpha=10", "kappa=0.5", "rho=0.01"]


def shell(command, redirections, **variables):
    """A command of a shell with redirections; its status, stdout and stderr."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirections}', "bash", *command],
        capture_output=True,
        text=True,
        env=environment(**variables),
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert "a mistake in icl" not in done.stderr
    return done.returncode, done.stdout, done.stderr


# Encodings.


@pytest.mark.parametrize(("encoding", "sign"), [("ascii", "+-"), ("utf-16", "±")])
def test_a_verdict_is_printed_in_every_encoding(encoding, sign, finished_run):
    done = subprocess.run(check_command(finished_run), capture_output=True, env=environment(PYTHONIOENCODING=encoding))
    assert done.returncode == 0
    assert "HOLDS  5 of 5 findings hold" in done.stdout.decode(encoding)
    assert f"0.510 {sign} 0.013" in done.stdout.decode(encoding)


def test_a_locale_without_utf_8(finished_run):
    for command in (check_command(finished_run), [*ICL, "--help"]):
        status, out, err = shell(command, "", LC_ALL="POSIX", PYTHONUTF8=0, PYTHONCOERCECLOCALE=0)
        assert (status, err) == (0, "")
        assert out.isascii()
        assert out.strip()


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("1 ± 2 \N{MINUS SIGN} 3…", b"1 +- 2 - 3..."),
        ("κ, Γ, λ, ℓ₂, ρ²", b"kappa, Gamma, lambda, l2, rho2"),
        ("Fréchet ŷ", b"Frechet y"),
        ("≤ ∞ ☃ 中", b"<= inf ? ?"),
        (os.fsdecode(b"caf\xe9"), b"caf\xe9"),
    ],
)
def test_characters_that_an_encoding_lacks_are_spelled(text, encoded):
    with streams.usable():
        assert text.encode("ascii", "icl-spelled") == encoded


def test_characters_that_an_encoding_has_stay():
    with streams.usable():
        assert "1 ± 2 ≤ √3".encode("koi8-r", "icl-spelled") == b"1 +- 2 \x98 \x963"


def test_a_path_that_is_no_unicode_is_printed_as_it_is(finished_run, tmp_path):
    place = os.fsencode(tmp_path) + b"/caf\xe9"
    os.symlink(os.fsencode(finished_run), place)
    command = [os.fsencode(word) for word in check_command("PLACE")]
    command[command.index(b"PLACE")] = place
    done = subprocess.run(command, capture_output=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert b"caf\xe9/claims/steady/small" in done.stdout


# Widths.


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc", "²", "9" * 12, ""])
def test_any_width_prints_everything(columns, finished_run, icl, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["--help"], ["list"], FORMULA, ["cite", CLAIM, "--claims", CLAIMS], check_command(finished_run)[3:]):
        monkeypatch.setenv("COLUMNS", "80")
        status, usual, _ = icl(*words)
        monkeypatch.setenv("COLUMNS", columns)
        narrow = icl(*words)
        assert narrow[0] == status == 0
        assert "".join(narrow[1].split("\n")).replace(" ", "").count("…") == usual.count("…")
        assert len(narrow[1].split()) >= len(usual.split())
        assert max(map(len, narrow[1].splitlines())) <= max(80, *map(len, usual.splitlines()))


def test_a_terminal_without_a_size_and_one_that_draws_no_bars(tmp_path, on_terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    status, out, text = on_terminal(*run_command(tmp_path)[len(ICL) :])
    assert status == 0
    assert "HOLDS  5 of 5 findings hold" in out
    assert b"5 of 5 cells (dim=" in text


# Closed, broken and full streams.


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize("words", ["--help", "__complete run asym", "theory", "theory --json"])
def test_an_answer_without_a_stdout_is_a_fault_of_the_environment(words, redirection):
    status, out, err = shell([*ICL, *words.split()], redirection)
    assert (status, out) == (4, "")
    reason = "Bad file descriptor" if redirection == ">&-" else "No space left on device"
    assert complaint(err) == f"icl: the system refused stdout: {reason}"


@pytest.mark.parametrize("words", ["--help", "theory", "theory --json", "__complete run asym"])
def test_a_reader_that_goes_away_is_no_fault(words):
    """As in ``icl theory | head -1``."""
    process = subprocess.Popen(
        [*ICL, *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_bad_input_is_bad_input_without_a_stdout():
    status, _, err = shell([*ICL, "theory", "nonsense", "--json"], ">&-")
    assert status == 2
    assert "unknown formula 'nonsense'" in complaint(err)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_takes_nothing_changes_neither_answer_nor_status(redirection):
    status, out, _ = shell([*ICL, "theory", "nonsense", "--json"], redirection)
    assert status == 2
    assert strictly(out)["error"]["kind"] == "input"


def test_progress_that_cannot_be_written_changes_neither_answer_nor_status(tmp_path, icl_to):
    with open("/dev/full", "w") as full:
        status, out, _ = icl_to(full.fileno(), *run_command(tmp_path, "--json")[len(ICL) :])
    assert (status, strictly(out)["verdict"]) == (0, "holds")


@pytest.mark.slow
def test_a_run_without_any_stream_keeps_its_results(tmp_path, icl):
    """Nothing that is opened gets the number of a standard stream, in workers neither."""
    status, out, err = shell(run_command(tmp_path, "--workers", "2"), "<&- >&- 2>&-")
    assert (status, out, err) == (4, "", "")
    assert icl(*check_command(tmp_path)[len(ICL) :])[0] == 0
    assert (tmp_path / STORE / "verdict.json").is_file()


def test_a_claim_that_ends_the_program_does_not_fail(tmp_path, icl):
    """1 means that a claim fails, and nothing else."""
    folder = tmp_path / "claims"
    folder.mkdir()
    text = (CLAIMS / "steady.py").read_text()
    (folder / "steady.py").write_text(text.replace('    print("a claim that prints")', "    raise SystemExit(1)"))
    ends = text.replace("def theory(dataset):", "def theory(dataset):\n    raise SystemExit(1)")
    (folder / "ends.py").write_text(ends)
    for name in ("steady", "ends"):
        status, _, err = icl("run", f"claims/{name}", "--size", "small", "--claims", folder, "--out", tmp_path)
        assert status == 4
        assert "SystemExit" in err or "sys.exit(1)" in err
