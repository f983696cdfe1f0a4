"""Write the outputs on docs/tour.md anew: each of its commands is typed again, in a folder of its own.

.venv/bin/python docs/make_tour.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import iclbook

PAGE = Path(__file__).parent / "tour.md"
_BLOCK = re.compile(r"```console\n\$ (icl .*)\n((?:.*\n)*?)```\n")


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of the page, with the output below it."""
    return _BLOCK.findall(text)


def typed(command: str, folder: Path) -> str:
    """What a command prints in a folder, on a terminal of 100 columns; its exit status where that is not 0."""
    words = [sys.executable, "-m", "icllab", *command.split()[1:]]
    process = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(folder), "COLUMNS": "100", "JAX_PLATFORMS": "cpu"},
    )
    lines = process.stdout.splitlines() + [f"exit status {process.returncode}"] * (process.returncode != 0)
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    return text.replace(f"{folder.resolve()}/", "").replace(str(Path(iclbook.__file__).parent), "iclbook")


def main() -> None:
    """Type all of them, one after the other, in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        again = _BLOCK.sub(
            lambda match: f"```console\n$ {match[1]}\n{typed(match[1], Path(folder))}```\n", PAGE.read_text("utf-8")
        )
    PAGE.write_text(again, "utf-8")


if __name__ == "__main__":
    main()
