"""HTTP API of the page: claims with their results, explorers, prompts and runs; one method for each address."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from starlette.responses import Response

from icllab.core.errors import EnvironmentFault, IclError, InputError, expected, require_known
from icllab.figures.markup import joined, prose, tag
from icllab.page import cards, catalogue, results
from icllab.page.catalogue import Entry
from icllab.page.endpoints import Endpoint, NotFound, json_response
from icllab.page.explorers import EXPLORERS
from icllab.page.language_models import MISSING, SIZES, TEXTS, LanguageModels
from icllab.page.results import Result, Results
from icllab.page.runs import Job, Runs

MOST_WORKERS = 64
_TIMEOUT = 300.0
_MEDIA_TYPES = {"figure.png": "image/png", "figure.pdf": "application/pdf", "results.nc": "application/x-netcdf"}


class Api:
    """The claims, and one directory of results."""

    def __init__(self, out: Path, claims: Path | None = None) -> None:
        self.out, self.folder = out, claims
        self.results, self.runs = Results(out), Runs(out, claims)
        self.language_models = LanguageModels(Path(os.environ.get("ICLLAB_MODELS", "models")).absolute())
        self._claims: dict[str, Entry] = {}
        self._fault: IclError | None = None
        self._ready = threading.Event()
        self.endpoints = [
            Endpoint(path="/api/claims", answer=self.gallery),
            Endpoint(path="/api/claims/{subject}/{finding}", answer=self.claim),
            Endpoint(path="/api/claims/{subject}/{finding}/{name}.png", answer=self.recorded_figure),
            Endpoint(path="/api/claims/{subject}/{finding}/report.html", answer=self.report),
            Endpoint(path="/api/results/{subject}/{finding}/{name}/{file}", answer=self.download, query=True),
            Endpoint(path="/api/explorers", answer=self.explorers),
            Endpoint(path="/api/explorers/{id}", answer=self.explore, query=True),
            Endpoint(path="/api/models", answer=self.models),
            Endpoint(path="/api/prompt", answer=self.read_prompt, method="POST"),
            Endpoint(path="/api/runs", answer=self.run_states),
            Endpoint(path="/api/runs", answer=self.start, method="POST"),
            Endpoint(path="/api/runs/{id}/log", answer=self.log),
            Endpoint(path="/api/runs/{id}/stop", answer=self.stop, method="POST"),
        ]

    def open(self) -> None:
        """Read the claims; requests that arrive meanwhile wait."""
        try:
            self._claims = catalogue.catalogue(self.folder)
        except IclError as error:
            self._fault = error
        finally:
            self._ready.set()

    def close(self) -> None:
        """Stop every run, and end the process of the language models."""
        self.language_models.close()
        self.runs.close()

    def claims(self) -> dict[str, Entry]:
        """Claim -> entry."""
        if not self._ready.wait(_TIMEOUT):
            raise EnvironmentFault("the claims are still being read; reload the page")
        if self._fault is not None:
            raise self._fault
        return self._claims

    def entry(self, claim: str) -> Entry:
        """One claim."""
        if claim not in self.claims():
            raise NotFound("claim: expected one of this library or folder, got another")
        return self.claims()[claim]

    # Claims and their results.

    def gallery(self) -> Response:
        """Every claim as a tile."""
        entries = list(self.claims().values())
        papers = {source.key: source.short for entry in entries for source in entry.card.sources}
        return json_response(
            {
                "claims": [self._tile(entry) for entry in entries],
                "subjects": {entry.card.subject: entry.subject for entry in entries},
                "papers": dict(sorted(papers.items(), key=lambda item: item[1].lower())),
                "out": str(self.out),
            }
        )

    def _tile(self, entry: Entry) -> dict[str, Any]:
        card = entry.card
        tile = {"claim": card.claim, "subject": card.subject, "papers": [], "verdict": "none", "words": card.claim}
        if entry.fault:
            heading = tag("h3", tag("code", card.claim))
            return tile | {"html": tag("article", heading, cards.fault(entry.fault), class_="tile")}
        local = self.results.of(entry)
        evidence = self._evidence(entry, local)
        badge = cards.standing(evidence)
        words = " ".join(
            [card.claim, card.title, card.sentence, card.conditions, *(source.text for source in card.sources)]
        )
        return tile | {
            "papers": [source.key for source in card.sources],
            "verdict": badge.verdict if badge else "none",
            "stale": bool(badge and badge.stale),
            "words": words.lower(),
            "html": cards.tile(card, evidence, results.picture(entry, local), f"#/claims/{card.claim}"),
        }

    def _evidence(self, entry: Entry, local: list[Result]) -> list[cards.Evidence]:
        """The record of a claim and its results on this machine."""
        evidence, ordinary = cards.from_record(entry.card), self._command(entry, entry.card.ordinary, None)
        for result in local:
            command = self._command(entry, result.size, result.control)
            evidence.append(results.evidence(result, entry, command if command != ordinary else ""))
        return evidence

    def _command(self, entry: Entry, size: str, control: str | None) -> str:
        return results.command(entry.card.claim, size, control, self.out, self.folder)

    def claim(self, subject: str, finding: str) -> Response:
        """The card of a claim, with its texts."""
        entry = self.entry(f"{subject}/{finding}")
        card = entry.card
        if entry.fault:
            return json_response({"claim": card.claim, "html": cards.fault(entry.fault), "sizes": []})
        local = self.results.of(entry)
        html = cards.card_html(
            card,
            self._evidence(entry, local),
            results.picture(entry, local),
            symbols=catalogue.symbols(card.claim, self.folder),
            command=self._command(entry, card.ordinary, None),
            heading="h1",
        )
        texts = catalogue.texts(card.claim, self.folder)
        sources = [tag("details", tag("summary", label), tag("pre", text)) for label, text in texts.items()]
        report = tag("a", "Report (one file)", href=f"api/claims/{card.claim}/report.html", download=True)
        if text := catalogue.background(card.claim, self.folder):
            sources.insert(0, tag("details", tag("summary", "Background"), prose(text), class_="background", open=True))
        html = joined(html, tag("p", report, class_="links"), tag("h2", "Texts"), *sources)
        return json_response({"claim": card.claim, "html": html, "sizes": [] if card.origin else list(card.sizes)})

    def recorded_figure(self, subject: str, finding: str, name: str) -> Response:
        """The figure that the claim's book has, ``figure``, or that for lists, ``card``."""
        path = cards.recorded_figure(self.entry(f"{subject}/{finding}").card.claim, small=name == "card")
        if path is None or name not in ("figure", "card"):
            raise NotFound("figure: the claim has none in its book")
        return Response(path.read_bytes(), media_type="image/png")

    def report(self, subject: str, finding: str) -> Response:
        """The report of one claim, made by ``icl report`` in a process of its own, which opens the results."""
        claim = self.entry(f"{subject}/{finding}").card.claim
        with tempfile.TemporaryDirectory(prefix="icl-page-") as folder:
            path = Path(folder) / "report.html"
            words = ["report", claim, "-o", str(path), "--out", str(self.out)]
            words += ["--claims", str(self.folder)] if self.folder else []
            process = subprocess.run(
                [sys.executable, "-m", "icllab", *words], capture_output=True, stdin=subprocess.DEVNULL
            )
            if not path.is_file():
                lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
                raise EnvironmentFault(lines[-1] if lines else "report: `icl report` wrote none")
            content = path.read_bytes()
        return Response(content, media_type="text/html", headers=_attachment(f"{claim}.html"))

    def download(self, subject: str, finding: str, name: str, file: str, query: dict[str, str]) -> Response:
        """A figure or the data of a result; the query only tells one state of a file from the next."""
        local = {result.path.name: result for result in self.results.of(self.entry(f"{subject}/{finding}"))}
        missing = NotFound("result: expected a figure or data of a result in this directory")
        if name not in local or file not in local[name].files:
            raise missing
        try:  # the file may be another since it was listed
            content = results.read_regular(local[name].path / file)
        except OSError as error:
            raise missing from error
        headers = {} if file == "figure.png" else _attachment(f"{subject}/{finding}/{name}.{file.split('.')[1]}")
        return Response(content, media_type=_MEDIA_TYPES[file], headers=headers)

    # Explorers.

    def explorers(self) -> Response:
        """Every explorer with its controls."""
        return json_response({"explorers": [explorer.declaration() for explorer in EXPLORERS.values()]})

    def explore(self, id: str, query: dict[str, str]) -> Response:
        """The closed form of an explorer at the values of its controls."""
        if id not in EXPLORERS:
            raise NotFound(f"explorer: expected one of {', '.join(EXPLORERS)}")
        return json_response(EXPLORERS[id].answer(**query))

    # Prompts.

    def models(self) -> Response:
        """The language models of this machine, texts to begin with, and advice to a machine without models."""
        names = self.language_models.names()
        missing = "" if names else MISSING.format(self.language_models.folder)
        return json_response({"models": names, "texts": TEXTS, "sizes": SIZES, "missing": missing})

    def read_prompt(self, body: dict[str, Any]) -> Response:
        """Losses of the tokens of a text and the pattern of a head; the body has the arguments of ``read``."""
        for name in body:
            require_known("name in the body:", name, ("model", "text", "size", "block", "head"))
        return json_response(self.language_models.read(**{"model": None, "text": None, **body}))

    # Runs.

    def run_states(self) -> Response:
        """Every run, the newest first."""
        return json_response({"runs": [self.run_state(job) for job in self.runs.jobs()]})

    def run_state(self, job: Job) -> dict[str, Any]:
        """A run with its progress, ready for JSON."""
        local = self.results.of(self.entry(job.claim)) if job.started is not None else []
        result = next((r for r in local if (r.size, r.control) == (job.size, None)), None)
        progress = {"done": result.cells if result else 0, "total": result.total if result else 0}
        return job.as_dict() | progress

    def start(self, body: dict[str, Any]) -> Response:
        """Queue a run; the body has a claim, a size and a number of worker processes."""
        for name in body:
            require_known("name in the body:", name, ("claim", "size", "workers"))
        claim, size, workers = body.get("claim"), body.get("size", "small"), body.get("workers", 1)
        if not isinstance(claim, str):
            raise expected("claim", "the name of a claim", claim)
        card = self.entry(claim).card
        if card.origin:
            raise InputError(f"{claim}: expected a claim of the book; one from elsewhere is run in a terminal")
        require_known("size", size, card.sizes)
        if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MOST_WORKERS:
            raise expected("workers", f"an integer from 1 to {MOST_WORKERS}", workers)
        return json_response({"id": self.runs.start(claim, size, workers).id})

    def stop(self, id: str, body: dict[str, Any]) -> Response:
        """Stop a run, whatever the body; its finished cells are kept."""
        return json_response({"id": id, "state": self.runs.stop(id).state})

    def log(self, id: str) -> Response:
        """The end of a run's log."""
        return json_response({"id": id, "log": self.runs.log(id)})


def _attachment(name: str) -> dict[str, str]:
    """A header that makes a browser save the answer; other characters than letters and digits are replaced."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-._@") else "-" for c in name)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}
