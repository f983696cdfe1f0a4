"""Check an environment in which icl-lab and the wheel of ``template`` are installed; run by its own interpreter.

    python -m venv new && new/bin/pip install 'WHEEL[page]' ./template && new/bin/python -P tests/installed.py dist

The claim is listed, checked, cited and drawn without an import of its code; then it runs, and has the recorded numbers.
The archives in ``dist`` have the same package; claims, records, figures and the page are where the wheel puts them.
"""

import contextlib
import io
import json
import os
import sys
import sysconfig
import tarfile
import tempfile
import threading
import urllib.request
import zipfile
from pathlib import Path

CLAIM, WHEEL = "random_matrices/resolvent", "my-claims 0.1.0"
ROOT = Path(__file__).resolve().parents[1]


def answer(*words):
    """The JSON object of a command, which must end with status 0."""
    from icllab.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        status = main([*words, "--json"])
    assert status == 0, (words, status, text.getvalue())
    return json.loads(text.getvalue())


def imported():
    """Modules of the template's package, or of its claim."""
    return [name for name in sys.modules if name.startswith(("my_claims", "icllab_claim"))]


def archives(dist):
    """Sizes of wheel and source archive, whose packages must be equal, byte for byte."""
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        built = {name: file.read(name) for name in file.namelist() if name.startswith("icllab/")}
    with tarfile.open(source) as file:
        names = {member.name.partition("/src/")[2]: member for member in file if "/src/icllab/" in member.name}
        assert names.keys() == built.keys(), names.keys() ^ built.keys()
        assert all(file.extractfile(member).read() == built[name] for name, member in names.items())
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in (wheel, source))


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


def main():
    """Examine the environment; an assertion says what is wrong."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
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
        figures = Path(sysconfig.get_path("data")) / "share" / "icl-lab" / "figures"
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
        answer("new", "mine/first", "--from", "theory")
        os.chdir("/")
    print(f"icl-lab {icllab.__version__} with {WHEEL}: {len(ours)} claims with records and figures; {sizes}")


if __name__ == "__main__":
    main()
