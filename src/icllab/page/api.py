"""What the page's server knows and does: claims, stored results, runs, explorers; one method an address."""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from icllab.core.errors import EnvironmentFault, IclError, InputError, expected
from icllab.lab.claim import SIZES
from icllab.page import cards, catalogue, reading, stored, watching
from icllab.page.asked import Endpoint, NotThere, Parameter, answered, computed, sent
from icllab.page.catalogue import Entry
from icllab.page.index import Index, Stored
from icllab.page.markup import joined, tag
from icllab.page.prose import prose
from icllab.page.runs import Runs

if TYPE_CHECKING:
    from icllab.page.explorers import Explorer

_PATIENCE, _READING = 60.0, 300.0
_WORKERS = 64


class Api:
    """One directory of results, and what can be asked of it."""

    def __init__(self, out: Path, claims: Path | None = None) -> None:
        self.out, self.folder = out, claims
        self.index, self.runs = Index(out), Runs(out, claims)
        self._claims: dict[str, Entry] = {}
        self._fault: IclError | None = None
        self._ready = threading.Event()
        self._faults: dict[tuple[str, float], str] = {}
        self._examining = threading.Lock()
        self._drawing = threading.Lock()
        name = Parameter()
        self.endpoints = [
            Endpoint(path="/api/claims", answer=self.gallery),
            Endpoint(path="/api/claims/{subject}/{finding}", answer=self.claim),
            Endpoint(path="/api/claims/{subject}/{finding}/figure.png", answer=self.recorded_figure, query=_VERSION),
            Endpoint(path="/api/claims/{subject}/{finding}/report.html", answer=self.report),
            Endpoint(path="/api/results", answer=self.results),
            Endpoint(path="/api/results/{id}", answer=self.result),
            Endpoint(path="/api/results/{id}/points", answer=self.points, query={"explorer": name}, others=True),
            Endpoint(path="/api/results/{id}/so-far.png", answer=self.so_far, query=_VERSION),
            Endpoint(path="/api/results/{id}/{what}", answer=self.download, query=_VERSION),
            Endpoint(path="/api/explorers", answer=self.explorers),
            Endpoint(path="/api/explorers/{id}", answer=self.explore, others=True),
            Endpoint(path="/api/runs", answer=self.start, method="POST", body=_RUN),
            Endpoint(path="/api/runs/{id}/log", answer=self.log),
            Endpoint(path="/api/runs/{id}/stop", answer=self.stop, method="POST"),
        ]

    def open(self) -> None:
        """Read the claims and look at the results; what is asked meanwhile waits."""
        try:
            self.index.refresh()
            self._claims = catalogue.catalogue(self.folder)
        except IclError as error:
            self._fault = error
        finally:
            self._ready.set()
        _explorers()  # before somebody waits for them

    def close(self) -> None:
        """Stop what runs."""
        self.runs.close()

    # What there is.

    def claims(self) -> dict[str, Entry]:
        """Claim -> entry, once they are read."""
        self._ready.wait(_READING)
        if self._fault is not None:
            raise self._fault
        if not self._ready.is_set():
            raise EnvironmentFault("the claims are still being read; ask again")
        return self._claims

    def entry(self, subject: str, finding: str) -> Entry:
        """A claim by the parts of its name."""
        name = f"{subject}/{finding}"
        if name not in self.claims():
            raise NotThere("claim: expected one of this library or folder, got another")
        return self.claims()[name]

    def stored(self, id: str) -> Stored:
        """A result by its id."""
        one = self.index.present().get(id) or self.index.refresh().get(id)
        if one is None:
            raise NotThere("result: expected one of this directory, it has none of that id")
        return one

    def _here(self, claim: str) -> list[Stored]:
        """The results of a claim that lie where they belong, the smallest size first."""
        found = [one for one in self.index.present().values() if one.current and one.claim == claim]
        return sorted(found, key=lambda one: (one.control is not None, SIZES.index(one.size), one.control or ""))

    def _evidence(self, entry: Entry) -> list[cards.Evidence]:
        found = cards.of_record(entry.card)
        for one in self._here(entry.card.claim):
            again = stored.command(one.claim, one.size, one.control, self.out, self.folder)
            shown = again != stored.command(one.claim, entry.card.ordinary, None, self.out, self.folder)
            found.append(stored.evidence(one, entry, again if shown else ""))
        return found

    # The gallery.

    def gallery(self) -> Response:
        """Every claim as a tile, with what it is found by; then files that are no claim's."""
        self.index.refresh()
        tiles = [self._tile(entry) for entry in self.claims().values()]
        apart = [one for one in self.index.present().values() if self._is_apart(one)]
        others = [self._other(one) for one in apart]
        unknown = [one for one in apart if one.kind == "file" and (one.id, one.updated) not in self._faults]
        if unknown:
            threading.Thread(target=self._examine, args=[unknown], daemon=True).start()
        papers = {s.key: s.short for e in self.claims().values() for s in e.card.sources}
        return answered(
            {
                "claims": tiles,
                "others": others,
                "subjects": {e.card.subject: e.subject for e in self.claims().values()},
                "papers": dict(sorted(papers.items(), key=lambda item: item[1].lower())),
                "out": str(self.out),
                "links": self.index.links,
            }
        )

    def _tile(self, entry: Entry) -> dict[str, Any]:
        card = entry.card
        if entry.fault:
            html = tag("article", tag("h3", tag("code", card.claim)), cards.fault(entry.fault), class_="tile")
            return {"claim": card.claim, "subject": card.subject, "papers": [], "verdict": "none", "html": html}
        found = self._evidence(entry)
        standing = cards.standing(found)
        image = stored.picture(entry, self._here(card.claim))
        return {
            "claim": card.claim,
            "subject": card.subject,
            "papers": [source.key for source in card.sources],
            "verdict": standing.verdict if standing else "none",
            "stale": bool(standing and standing.stale),
            "words": " ".join([card.claim, card.sentence, card.conditions, *(s.text for s in card.sources)]).lower(),
            "html": cards.tile(card, found, image, f"#/claim/{card.claim}"),
        }

    def _is_apart(self, one: Stored) -> bool:
        """Whether no claim's tile shows it: a file from elsewhere, results of an unknown claim or that are unsound."""
        return one.kind == "file" or one.claim not in self._claims

    def _other(self, one: Stored) -> dict[str, str]:
        fault = one.fault or self._faults.get((one.id, one.updated), "")
        name = tag("h3", tag("a", one.label, href=f"#/result/{one.id}"))
        about = cards.fault(fault) if fault else tag("p", one.claim or "A netCDF file.", class_="name")
        return {"id": one.id, "label": one.label, "html": tag("article", name, about, class_="tile file")}

    def _examine(self, files: list[Stored]) -> None:
        """Whether files from elsewhere can be read; the gallery says so the next time."""
        if not self._examining.acquire(blocking=False):
            return  # others are; these are asked for again with the next gallery
        try:
            for one in files:
                said = ""
                try:
                    reading.dataset(one.path)
                except (IclError, OSError) as error:
                    said = stored.reason(error, one)
                self._faults[(one.id, one.updated)] = said
        finally:
            self._examining.release()

    def claim(self, subject: str, finding: str) -> Response:
        """All of a claim, with its texts."""
        entry = self.entry(subject, finding)
        self.index.refresh()
        if entry.fault:
            return answered({"claim": entry.card.claim, "html": cards.fault(entry.fault), "sizes": []})
        here = self._here(entry.card.claim)
        html = cards.card_html(
            entry.card,
            self._evidence(entry),
            stored.picture(entry, here),
            command=stored.command(entry.card.claim, entry.card.ordinary, None, self.out, self.folder),
            heading="h1",
        )
        texts = catalogue.texts(entry.card.claim, self.folder)
        shown = [tag("details", tag("summary", label), tag("pre", text)) for label, text in texts.items()]
        about = [tag("h2", "About this claim"), tag("div", prose(entry.about), class_="prose")] if entry.about else []
        report = f"/api/claims/{entry.card.claim}/report.html"
        had = tag("p", tag("a", "Report (one file)", href=report, download=True), class_="links")
        whole = joined(html, had, *about, tag("h2", "Texts"), *shown)
        return answered({"claim": entry.card.claim, "html": whole, "sizes": list(entry.card.sizes)})

    def recorded_figure(self, subject: str, finding: str, v: str = "") -> Response:
        """The figure that comes with the library."""
        path = cards.recorded_figure(self.entry(subject, finding).card.claim)
        if path is None:
            raise NotThere("figure: this claim has none in the library")
        return sent(path, "image/png", _KEPT)

    def report(self, subject: str, finding: str) -> Response:
        """The report of one claim, made by the command that makes it elsewhere: it opens files of results."""
        claim = self.entry(subject, finding).card.claim
        with tempfile.TemporaryDirectory(prefix="icl-page-") as folder:
            path = Path(folder) / "report.html"
            words = ["report", claim, "-o", str(path), "--out", str(self.out)]
            words += ["--claims", str(self.folder)] if self.folder else []
            done = subprocess.run(
                [sys.executable, "-m", "icllab", *words], capture_output=True, stdin=subprocess.DEVNULL
            )
            if not path.is_file():
                said = done.stderr.decode("utf-8", "replace").strip().splitlines()
                raise EnvironmentFault(said[-1] if said else "report: it could not be made")
            text = path.read_bytes()
        name = f"{claim.replace('/', '-')}.html"
        return Response(text, media_type="text/html", headers=_attached(name))

    # Results.

    def results(self) -> Response:
        """What is stored, in a few words each."""
        found = self.index.refresh().values()
        names = ("id", "label", "kind", "claim", "size", "control", "current", "verdict", "cells", "of", "updated")
        rows = [
            {name: getattr(one, name) for name in names}
            | {"stale": stored.is_stale(one, self.claims().get(one.claim)), "fault": bool(one.fault)}
            for one in sorted(found, key=lambda one: one.label)
        ]
        return answered({"results": rows})

    def result(self, id: str) -> Response:
        """One result."""
        return answered({"id": id, "html": stored.result_html(self.stored(id))})

    def download(self, id: str, what: str, v: str = "") -> Response:
        """A figure or the data of a result."""
        one = self.stored(id)
        if what not in stored.DATA:
            raise NotThere("download: expected a figure or data, got another")
        path = stored.file_of(one, what)
        if path is None or path.is_symlink() or not path.is_file():
            raise NotThere("download: this result has none")
        name = f"{one.label.removesuffix('.nc').replace('/', '-')}.{what.split('.')[1]}"
        if what == "figure.png":
            return sent(path, "image/png", _KEPT)
        if what != "data.csv":
            kind = "application/pdf" if what.endswith("pdf") else "application/x-netcdf"
            return sent(path, kind, _attached(name))
        data = reading.dataset(path)
        if reading.rows(data) > reading.MOST_ROWS:
            raise expected(
                "data", f"at most {reading.MOST_ROWS} numbers for a table", reading.rows(data), "take NetCDF"
            )
        return StreamingResponse(reading.as_csv(data), media_type="text/csv", headers=_attached(name))

    def so_far(self, id: str, v: str = "") -> Response:
        """The figure of the cells that are finished."""
        one = self.stored(id)
        if one.kind != "claim" or one.claim not in self.claims():
            raise NotThere("figure: expected results of a claim")
        words = [str(one.path.resolve()), one.claim] + ([str(self.folder.resolve())] if self.folder else [])
        command = [sys.executable, "-P", "-m", "icllab.page.partial", *words]
        with self._drawing:
            try:
                done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                raise NotThere("figure: expected one within a minute, there is none yet") from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise NotThere(said[-1][:300] if said else "figure: it could not be drawn")
        return Response(done.stdout, media_type="image/png")

    # Explorers.

    def explorers(self) -> Response:
        """What can be explored, with its controls."""
        return answered({"explorers": [explorer.declaration() for explorer in _explorers().values()]})

    def explore(self, id: str, values: dict[str, str]) -> Response:
        """The answer of a closed form."""
        return computed(_explorer(id).answer(**values))

    def points(self, id: str, explorer: str, values: dict[str, str]) -> Response:
        """Points of a stored result for an explorer."""
        one, shown = self.stored(id), _explorer(explorer)
        path = stored.file_of(one, "data.nc")
        if path is None or one.fault or one.claim not in shown.overlay:
            raise InputError(f"result: expected finished results of {' or '.join(shown.overlay) or 'no claim'}")
        try:
            return computed(shown.points(reading.dataset(path), **values))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"result: expected what the explorer needs, got {type(error).__name__}: {error}"
            ) from error

    # Runs.

    def state(self) -> dict[str, Any]:
        """What goes on."""
        self.index.refresh()
        return watching.state(self.index, self.runs.jobs())

    def start(self, claim: str, size: str = "small", workers: int = 1) -> Response:
        """Queue a run."""
        entry = self.claims().get(claim)
        if entry is None or entry.fault:
            raise NotThere("claim: expected one of this library or folder, got another")
        if size not in entry.card.sizes:
            raise expected("size", f"one of {', '.join(entry.card.sizes)}", size)
        return answered({"id": self.runs.start(claim, size, workers).id})

    def stop(self, id: str) -> Response:
        """Stop a run; its finished cells are kept."""
        return answered({"id": id, "state": self.runs.stop(id).state})

    def log(self, id: str) -> Response:
        """The end of a run's log."""
        return answered({"id": id, "log": self.runs.log(id)})


_VERSION = {"v": Parameter(most=40, required=False)}
_RUN = {
    "claim": Parameter(),
    "size": Parameter(options=SIZES, required=False),
    "workers": Parameter(kind="integer", least=1, most=_WORKERS, required=False),
}
_importing = threading.Lock()
_KEPT = {"Cache-Control": "private, max-age=3600"}


def _attached(name: str) -> dict[str, str]:
    """What a browser saves rather than shows; the name has nothing that would end it."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-._@") else "_" for c in name)
    return {"Content-Disposition": f'attachment; filename="{kept}"'}


def _explorer(id: str) -> "Explorer":
    if id not in _explorers():
        raise NotThere(f"explorer: expected one of {', '.join(_explorers())}")
    return _explorers()[id]


def _explorers() -> "dict[str, Explorer]":
    """Those that there are; their libraries are imported at the first call, by one thread."""
    with _importing:
        from icllab.page.explorers import EXPLORERS

        return EXPLORERS
