"""``icl page`` as a process: it answers soon, ends with Ctrl-C, and says in one line why it cannot begin."""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from faults.processes import ICL, complaint, environment, started, strictly

import icllab.page
from icllab.cli import paging
from icllab.core.errors import EnvironmentFault


def page(tmp_path, *more):
    """A page under way, and its address."""
    process = started([*ICL, "page", "--out", str(tmp_path), "--port", "0", "--no-browser", "--json", *more])
    line = process.stderr.readline()
    assert "the page is at http://" in line, line + process.stderr.read()
    return process, line.split()[5]


def test_it_answers_soon_and_ends_with_an_interrupt(tmp_path):
    begun = time.monotonic()
    process, address = page(tmp_path / "not there yet")
    try:
        with urllib.request.urlopen(address) as answer:
            assert b"icl-lab" in answer.read()
        assert time.monotonic() - begun < 15
        foreign = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(foreign)
        # Nobody but this machine is listened to.
        port = int(address.rstrip("/").rpartition(":")[2])
        assert listening_at(port) in ({"0100007F"}, set())
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert strictly(out) == {"command": "page", "exit_status": 0, "address": address}


def listening_at(port):
    """The addresses at which this machine listens to a port, in hexadecimal as Linux has them; empty elsewhere."""
    try:
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return set()
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port}


def test_with_a_token_the_address_has_it(tmp_path):
    process, address = page(tmp_path, "--token")
    try:
        base, _, token = address.partition("?token=")
        assert len(token) >= 30
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(base)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address) as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--port", "99999"], 2, "--port: expected a number from 0 to 65535, got 99999"),
        (["--out", __file__], 2, "expected a directory of results"),
        (["--claims", "nowhere"], 2, "--claims: expected a folder of claims"),
        (["--host", "203.0.113.1", "--port", "0"], 4, "cannot listen at 203.0.113.1, port 0"),
    ],
)
def test_what_it_cannot_do_is_one_line(words, status, said, tmp_path, capfd):
    from faults.processes import inside

    came, _, err = inside(capfd, [*ICL, "page", "--no-browser", *words])
    assert came == status
    assert said in complaint(err)


def test_a_port_that_is_taken_is_said_to_be(tmp_path, capfd):
    from faults.processes import inside

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = inside(capfd, [*ICL, "page", "--no-browser", "--port", str(taken.getsockname()[1])])
    assert status == 4
    assert "--port 0 takes a free one" in complaint(err)


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "icllab.page.server", raising=False)
    monkeypatch.delattr(icllab.page, "server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(EnvironmentFault, match=r"pip install -e \S*\[page\]"):
        paging.page(tmp_path, claims=None, port=0, host="127.0.0.1", token=False, browser=False)


def test_help_needs_no_server():
    code = "import sys; from icllab.cli import main; main(['page', '--help']); print('starlette' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "False"
    assert "--token" in done.stdout
