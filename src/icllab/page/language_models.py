"""Language models behind the page: the folders that hold them, and one process that reads texts, one at a time.

The page's own process needs no JAX. :mod:`icllab.page.prompt_worker` starts with the first text, answers lines of JSON
over pipes, and ends with the page. A process that died is replaced at the next text.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from icllab.core.errors import EnvironmentFault, InputError, expected, require_known
from icllab.core.files import parse_json

TIMEOUT = 180.0
"""Seconds that one text may take, with the opening of its model."""
LONGEST = 4096  # characters of a text
SIZES = (1, 2, 4, 8)
"""Numbers of tokens that a loss without context may look at."""
COMMAND = (sys.executable, "-m", "icllab.page.prompt_worker")
MISSING = (
    "This view needs a language model in a folder of {}. `make models` in a clone brings three small ones (96 MB)."
)
TEXTS = {
    "The same words twice": (
        "Words: garden seven letter river window paper stone candle silver morning. "
        "Again: garden seven letter river window paper stone candle silver morning."
    ),
    "A story": (
        "The old man sat by the fire and looked at the little girl. “What is your name?” said the old man. "
        "“My name is Alice,” said the little girl, and the old man looked at the fire."
    ),
    "Capitals": "France: Paris\nItaly: Rome\nSpain: Madrid\nGermany: Berlin\nEgypt: Cairo\nJapan: Tokyo",
    "Em português": (
        "O rapaz abriu a janela e olhou para o rio. A manhã estava fria, e o rio estava cheio de barcos. "
        "Ninguém viu o rapaz à janela."
    ),
}
"""Texts to begin with, by name."""


class LanguageModels:
    """The models in a folder, and the process that reads texts with them.

    Attributes:
        folder: Its folders are the models; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False

    def names(self) -> list[str]:
        """Names of the folders with a model in one of the formats of ``models.pretrained``."""
        places = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(place.name for place in places if place.is_dir() and any(map(_is_model, place.iterdir())))

    def read(self, *, model: Any, text: Any, size: Any = 1, block: Any = None, head: Any = None) -> dict[str, Any]:
        """Losses of the tokens of a text with and without their context, and the pattern of a head.

        The answer is that of :func:`icllab.page.prompt_worker.read`.

        Raises:
            InputError: A value cannot be used.
            EnvironmentFault: There are no models, or the process ended or took too long.
        """
        names = self.names()
        if not names:
            raise EnvironmentFault(MISSING.format(self.folder))
        require_known("model", str(model), names)
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
            came = len(text) if isinstance(text, str) else text
            raise expected("text", f"1 to {LONGEST} characters, not all of them spaces", came)
        if type(size) is not int or size not in SIZES:
            raise expected("size", f"one of {SIZES}", size)
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a character is a question mark
        request = {"path": str(self.folder / model), "text": text, "size": size, "block": block, "head": head}
        if not self._lock.acquire(timeout=TIMEOUT):
            raise EnvironmentFault("models: another text is still being read; try again")
        try:
            answer = self._ask(request)
        finally:
            self._lock.release()
        if "error" in answer:
            raise (InputError if answer["status"] == InputError.exit_status else EnvironmentFault)(answer["error"])
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._closed:
            raise EnvironmentFault("models: the page has ended")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _start()
        process, late = self._process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(TIMEOUT, lambda: (late.set(), process.kill()))
        timer.daemon = True
        timer.start()
        line = b""
        with contextlib.suppress(OSError):  # a pipe whose reader has died
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        timer.cancel()
        if line.endswith(b"\n"):
            return parse_json(line)
        self._end()
        reason = f"took more than {TIMEOUT:g} s" if late.is_set() else f"ended with status {process.returncode}"
        hint = "the next text starts another; the terminal of `icl page` may say more"
        raise EnvironmentFault(f"models: the process that reads texts {reason}; {hint}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End the process, whatever it does."""
        self._closed = True
        while not self._lock.acquire(timeout=0.1):
            if (process := self._process) is not None:
                process.kill()  # so that the text under way gives the lock back
        self._end()
        self._lock.release()


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},  # a run may need the accelerator too
        start_new_session=True,  # Ctrl-C in the terminal reaches the server alone, which ends its processes
    )


def _is_model(path: Path) -> bool:
    return path.name == "config.json" or path.suffix in (".gguf", ".npz")
