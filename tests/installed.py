"""Check an environment in which icl-lab is installed; run by its own interpreter.

    python -m venv new && new/bin/pip install 'WHEEL[page]' && new/bin/python -P tests/installed.py alone
    new/bin/pip install BOOK_WHEEL ./template && new/bin/python -P tests/installed.py dist

Alone, each command that needs a claim says where the book is. With the book and the wheel of ``template``, the claim of
that is listed, checked, cited and drawn without an import of its code; then it runs, and has the recorded numbers. The
archives in ``dist`` have the same packages; claims, records and figures are where the book's wheel puts them.
"""

import contextlib
import importlib.util
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
import urllib.request
import zipfile
from pathlib import Path

CLAIM, WHEEL = "random_matrices/resolvent", "my-claims 0.1.0"
ROOT = Path(__file__).resolve().parents[1]


LARGEST = 1.6e6  # bytes of the laboratory's wheel
ABSENT = "no book is installed; in a clone of icl-lab `pip install -e book` brings its claims"
NEED_CLAIMS = (
    "list",
    "demo",
    "arena",
    "arena depth_error",
    *(f"{command} asymptotics/double_descent" for command in ("run", "check", "draw", "cite", "report", "claim cost")),
    "certify asymptotics/double_descent -o c.html",
    "export asymptotics/double_descent --to a.csv",
)
NEED_NONE = (
    "theory wishart.stieltjes q=1 kappa=2",
    "doctor",
    "cite Lu24",
    "claim new mine/second --from theory",
    "claim new new_book --book",
)


def answer(*words, status=0):
    """The JSON object of a command, which must end with a status."""
    from icllab.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        ended = main([*words, "--json"])
    assert ended == status, (words, ended, text.getvalue())
    return json.loads(text.getvalue())


def imported():
    """Modules of the template's package, or of its claim."""
    return [name for name in sys.modules if name.startswith(("my_claims", "icllab_file_"))]


def archives(dist):
    """Sizes of wheels and source archives, whose packages must be equal, byte for byte."""
    sizes = []
    for distribution, package in (("icl_lab", "icllab"), ("icl_lab_book", "iclbook")):
        (wheel,), (source,) = dist.glob(f"{distribution}-*.whl"), dist.glob(f"{distribution}-*.tar.gz")
        with zipfile.ZipFile(wheel) as file:
            built = {name: file.read(name) for name in file.namelist() if name.startswith(f"{package}/")}
        with tarfile.open(source) as file:
            names = {member.name.partition("/src/")[2]: member for member in file if f"/src/{package}/" in member.name}
            assert names.keys() == built.keys(), names.keys() ^ built.keys()
            assert all(file.extractfile(member).read() == built[name] for name, member in names.items())
        assert package == "iclbook" or wheel.stat().st_size <= LARGEST, wheel.stat().st_size
        sizes += [f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in (wheel, source)]
    return ", ".join(sizes)


def served(folder):
    """The page and its script, as the server of the installed package answers."""
    from icllab.page import server

    addresses, ready = [], threading.Event()
    on_ready = lambda address: (addresses.append(address), ready.set())  # noqa: E731
    threading.Thread(
        target=server.serve, args=(Path(folder),), kwargs={"port": 0, "on_ready": on_ready}, daemon=True
    ).start()
    assert ready.wait(60)
    pages = [urllib.request.urlopen(addresses[0] + name, timeout=60).read() for name in ("", "static/style.css")]
    assert b"<html" in pages[0]
    assert all(pages)


def alone():
    """Without a book, the commands that need no claim run, and the others say where the book is, in one line."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["ICLLAB_CONFIG"] = folder
        for command in NEED_NONE:
            answer(*command.split())
        for command in NEED_CLAIMS:
            message = answer(*command.split(), status=2)["error"]["message"]
            assert ABSENT in message, (command, message)
            assert "\n" not in message, (command, message)
        served(folder)
        os.chdir("/")
    print(f"{len(NEED_CLAIMS)} commands say where the book is")


def main():
    """Examine the environment; an assertion says what is wrong."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if sys.argv[1] == "alone":
        alone()
        return
    sizes = archives(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["ICLLAB_CONFIG"] = folder
        import icllab

        assert not Path(icllab.__file__).is_relative_to(ROOT / "src"), "expected an installed wheel, got the checkout"
        listing = answer("list")
        (row,) = [row for row in listing["claims"] if row["claim"] == CLAIM]
        assert (row["origin"], row["record"]["small"]["verdict"], listing["warnings"]) == (WHEEL, "holds", [])
        assert answer("check", CLAIM, "--recorded")["claims"][0]["verdict"] == "holds"
        assert "MarchenkoPastur67" in answer("cite", CLAIM)["bibtex"]
        answer("draw", CLAIM, "--recorded")
        ours = [row for row in listing["claims"] if row["origin"] is None]
        figures = Path(importlib.util.find_spec("iclbook").origin).with_name("figures")
        missing = [row["claim"] for row in ours if not figures.joinpath(row["claim"].split("/")[1] + ".png").is_file()]
        assert missing == []
        assert len(ours) > 80
        assert all(row["record"] for row in ours)
        assert answer("check", "asymptotics/double_descent", "--recorded")["claims"][0]["verdict"] == "holds"
        answer("certify", "asymptotics/double_descent", "-o", "certificate.html")
        answer("verify", "certificate.json")
        served(folder)
        assert imported() == [], imported()
        assert answer("run", CLAIM, "--size", "smoke")["numbers"] == "as recorded"
        assert imported() != []
        answer("claim", "new", "mine/first", "--from", "theory")
        os.chdir("/")
    print(f"icl-lab {icllab.__version__} with {WHEEL}: {len(ours)} claims with records and figures; {sizes}")


if __name__ == "__main__":
    main()
