"""The commands of ``icl`` and their help. Other modules do the work.

Importing this module must stay cheap: it is all that help and shell completion need.
"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

import icllab
from icllab.cli.parameters import (
    BATCH,
    COMMON,
    EXAMINE,
    FOLDERS,
    NETWORK,
    RUN,
    SELECTION,
    SWEEP,
    Batch,
    Claim,
    Claims,
    ClaimsFolder,
    Common,
    ExamineOptions,
    File,
    Folders,
    FromRecord,
    NetworkOptions,
    Results,
    RunOptions,
    Selection,
    SeveralResults,
    Size,
    Sweep,
    claim_names,
    formula_names,
    problem_names,
    switch,
    table_names,
    whole,
)
from icllab.cli.reports import Report

app = App(
    name="icl",
    help="The laboratory for the theory of in-context learning: claims that can be run and checked.",
    help_epilogue=(
        "Exit status: 0 holds; 1 fails; 2 bad input; 3 undecided, cells missing, or numbers moved at smoke; "
        "4 the environment or a cell failed; 130 interrupted, finished cells kept."
    ),
    help_format="plaintext",
    version=f"icl-lab {icllab.__version__}",
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command(sort_key=100, help="Install shell completion for icl.")
AUTHORS = Group("For makers of claims", sort_key=1)
claim_app = App(
    name="claim", help="Write, examine, add, price and submit claims.", group=AUTHORS, sort_key=1, version_flags=()
)
app.command(claim_app)
posteriors_app = App(
    name="posteriors",
    help="Posteriors of known answer: list them, write them for PyTorch, score an estimator on them.",
    group=AUTHORS,
    sort_key=5,
    version_flags=(),
)
app.command(posteriors_app)


@app.command(sort_key=1)
def demo(*, options: Folders = FOLDERS) -> Report:
    """Check one claim on this machine: numbers, a verdict and a figure, in about a minute."""
    from icllab.cli import running

    return running.demo(options.out)


@app.command(sort_key=2)
def examine(
    *networks: Annotated[
        str,
        Parameter(name="NETWORK", help="file.py:name, package.module:name, a folder of a model; two are compared."),
    ],
    tasks: Annotated[bool, switch("List the tasks and their defaults.")] = False,
    out: Annotated[Path, Parameter(name=["--to", "-o"], help="The report to write.")] = Path("report.html"),
    options: ExamineOptions = EXAMINE,
    named: NetworkOptions = NETWORK,
) -> Report:
    """Ask a network what the theories say of it, and write a report."""
    from icllab.cli import examining

    return examining.listed() if tasks else examining.examine(networks, options, named, out=out)


@app.command(name="list", sort_key=2)
def list_(
    *words: Annotated[
        str,
        Parameter(
            name="WORD", help="Words of a claim's name, title, sentence or conditions; an author, an arXiv number."
        ),
    ],
    subject: Annotated[str | None, Parameter(help="One subject, such as asymptotics.")] = None,
    paper: Annotated[str | None, Parameter(help="One source by its key, such as Lu24.")] = None,
    long: Annotated[bool, switch("Sentences, sizes, negative controls and sources too.")] = False,
    options: Folders = FOLDERS,
) -> Report:
    """List the claims with the verdicts of their records and of the results here."""
    from icllab.cli import listing

    return listing.listed(words, subject=subject, paper=paper, long=long, out=options.out, claims=options.claims)


@app.command(sort_key=3)
def run(
    claim: Claim,
    /,
    *,
    options: RunOptions = RUN,
    config: Annotated[Path | None, Parameter(help="A TOML file of these options; the command line wins.")] = None,
) -> Report:
    """Measure a claim and judge it; finished cells are kept, and an interrupted run goes on."""
    from icllab.cli import running
    from icllab.cli.options import merged

    return running.run(claim, merged(options, config))


@app.command(sort_key=4)
def check(
    *names: Claims,
    recorded: FromRecord = False,
    record: Annotated[bool, switch("Note the verdict and its data in the claim's record.")] = False,
    options: Selection = SELECTION,
) -> Report:
    """Judge finished results, or the data of the record; nothing is computed."""
    from icllab.cli import reading

    return reading.check(names, options, recorded=recorded, record=record)


@app.command(sort_key=5)
def draw(
    *results: SeveralResults,
    style: Annotated[
        Literal["screen", "paper", "slide"], Parameter(help="paper: letters of 8 points, no titles; slide: of 18.")
    ] = "screen",
    width: Annotated[
        str | None,
        Parameter(help="Width of the figure: 3.25in, 82mm, 8.2cm, 234pt; the style's unless said otherwise."),
    ] = None,
    to: Annotated[
        Path | None, Parameter(help="Where to write, without suffix; beside the results unless said otherwise.")
    ] = None,
    recorded: FromRecord = False,
    options: Selection = SELECTION,
) -> Report:
    """Draw the figure of results, as PNG and PDF; several claims stand side by side in one."""
    from icllab.cli import reading

    return reading.draw(results, options, style=style, width=width, to=to, recorded=recorded)


@app.command(sort_key=6)
def theory(
    name: Annotated[
        str | None,
        Parameter(help="A formula, such as wishart.stieltjes; all are listed without.", completer=formula_names),
    ] = None,
    /,
    *values: Annotated[
        str,
        Parameter(
            name="KEY=VALUE",
            help="A number, a list 1,2,4, a range start:stop:count or log:start:stop:count.",
            allow_leading_hyphen=True,
        ),
    ],
    options: Common = COMMON,
) -> Report:
    """Ask a closed form: one line per combination of the values. With a formula, --help defines its parameters."""
    from icllab.cli import formulas

    return formulas.evaluate(name, values) if name else formulas.overview()


@app.command(sort_key=7)
def cite(
    *words: Annotated[
        str,
        Parameter(
            name="CLAIM",
            help="A claim, as `icl list` names it; or words of a source: an author, an arXiv number.",
            completer=claim_names,
        ),
    ],
    text: Annotated[bool, switch("Plain references instead of BibTeX.")] = False,
    claims: ClaimsFolder = None,
    options: Common = COMMON,
) -> Report:
    """Print the sources of a claim, or those that fit words, as BibTeX."""
    from icllab.cli import citing

    return citing.cite(words, text, claims)


@app.command(sort_key=8)
def page(
    *,
    options: Folders = FOLDERS,
    port: Annotated[int | None, whole("Where to listen; 8765 or any free port unless said otherwise.")] = None,
    host: Annotated[
        str, Parameter(help="The address to listen at. One that others reach is guarded by a token.")
    ] = "127.0.0.1",
    token: Annotated[bool, switch("Ask for a token here too, where others use the machine.")] = False,
    proxy: Annotated[
        str,
        Parameter(help="The address at which a reverse proxy shows the page, such as JupyterHub's; asks for a token."),
    ] = "",
    browser: Annotated[bool, Parameter(negative="--no-browser", help="Open the page in a browser.")] = True,
) -> Report:
    """Show claims, results, runs and explorers as a local page, until Ctrl-C."""
    from icllab.cli import paging

    return paging.page(
        options.out, claims=options.claims, port=port, host=host, token=token, proxy=proxy, browser=browser
    )


@app.command(sort_key=9)
def report(*names: Claims, to: File = Path("report.html"), options: Folders = FOLDERS) -> Report:
    """Write claims with figures and numbers as one HTML file that needs nothing else; PDF figures beside it."""
    from icllab.cli import paging

    return paging.report(names, to=to, out=options.out, claims=options.claims)


@app.command(sort_key=10)
def export(
    results: Results,
    /,
    *,
    to: File,
    format: Annotated[
        Literal["csv", "parquet", "netcdf", "arviz"] | None,
        Parameter(help="A table, the Dataset, or ArviZ's groups; by the suffix of the file unless said otherwise."),
    ] = None,
    force: Annotated[bool, switch("Replace a file that is there.")] = False,
    options: Selection = SELECTION,
) -> Report:
    """Write results for other programs: CSV, Parquet, netCDF, ArviZ."""
    from icllab.cli import reading

    return reading.export(results, options, to=to, format=format, force=force)


@app.command(sort_key=12)
def doctor(*, options: Folders = FOLDERS) -> Report:
    """Examine the installation: versions, devices, disk."""
    from icllab.cli import environment

    return environment.examine(options.out)


@posteriors_app.command(name="list", sort_key=1)
def list_posteriors(*, options: Common = COMMON) -> Report:
    """List the problems with their difficulty, their number of parameters and their answers."""
    from icllab.cli import posteriors

    return posteriors.listed()


@posteriors_app.command(name="export", sort_key=2)
def export_posterior(
    problem: Annotated[str, Parameter(help="A problem, as `icl posteriors list` names it.", completer=problem_names)],
    /,
    *,
    to: Annotated[Literal["torch"], Parameter(help="The library that the files are for.")] = "torch",
    folder: Annotated[Path | None, Parameter(help="The folder; the problem's name below this one unless said.")] = None,
    key: Annotated[
        int | None, whole("Key that draws the problem's numbers; those that papers cite unless said.")
    ] = None,
    setting: Annotated[int, whole("Number of the temperature and localization.")] = 0,
    options: Common = COMMON,
) -> Report:
    """Write a problem as problem.py, data.npz and answers.json, which need PyTorch and NumPy alone."""
    from icllab.cli import posteriors

    return posteriors.export(problem, folder=folder, key=key, setting=setting)


@posteriors_app.command(name="score", sort_key=3)
def score_posteriors(
    estimator: Annotated[
        str, Parameter(name="FILE:FUNCTION", help="A file and a function `f(posterior, *, key)` in it.")
    ],
    /,
    *,
    problem: Annotated[
        tuple[str, ...], Parameter(help="Problems; all unless said.", negative="", completer=problem_names)
    ] = (),
    difficulty: Annotated[str | None, Parameter(help="Problems of one difficulty, such as regular.")] = None,
    key: Annotated[
        tuple[int, ...], Parameter(help="Keys that draw problems beside those that papers cite.", negative="")
    ] = (),
    options: Common = COMMON,
) -> Report:
    """Run an estimator on problems: how often its intervals hold the answer, and where it errs in silence."""
    from icllab.cli import posteriors

    return posteriors.score(estimator, problem, difficulty, key)


@claim_app.command(sort_key=1)
def new(
    name: Annotated[
        str,
        Parameter(
            help="subject/finding: the folder that is written below this one; with --book a package, or "
            "package/subject/finding."
        ),
    ],
    /,
    *,
    template: Annotated[
        Literal["double_descent", "trained", "theory"],
        Parameter(name="--from", help="A peak of a fit, a trained network, or a closed form and a simulation."),
    ] = "theory",
    book: Annotated[bool, switch("Write a book around the claim: a distribution, which others can install.")] = False,
    options: Common = COMMON,
) -> Report:
    """Write a claim of your own that runs, with its negative control and its test; or a book of claims."""
    from icllab.cli import authoring

    return authoring.new(name, template, book=book)


@claim_app.command(sort_key=2)
def conform(
    folder: Annotated[Path, Parameter(help="The folder of a claim of your own: its code runs.")],
    /,
    *,
    badge: Annotated[Path | None, Parameter(help="Where to write a badge, as SVG.")] = None,
    options: Common = COMMON,
) -> Report:
    """Examine a claim of your own: missing items and their remedies; it runs at smoke."""
    from icllab.cli import authoring

    return authoring.conform(folder, badge)


@claim_app.command(sort_key=3)
def add(
    folder: Annotated[Path, Parameter(help="A folder with claims: <subject>/<finding>/claim.py.")],
    /,
    *,
    remove: Annotated[bool, switch("Forget the folder; nothing in it changes.")] = False,
    options: Common = COMMON,
) -> Report:
    """Add a folder of claims from elsewhere to the list; their code runs on `icl run` alone."""
    from icllab.cli import authoring

    return authoring.add(folder, remove=remove)


@claim_app.command(sort_key=4)
def cost(claim: Claim, /, *, options: Sweep = SWEEP) -> Report:
    """Estimate the core-hours of a run by the claim's record, within a factor of five."""
    from icllab.cli import submitting

    return submitting.cost(claim, options)


@claim_app.command(sort_key=5)
def submit(claim: Claim, /, *, options: Batch = BATCH) -> Report:
    """Run a claim as jobs of Slurm, which are queued again when they are preempted."""
    from icllab.cli import submitting

    return submitting.submit(claim, options)


@app.command(sort_key=2, group=AUTHORS)
def arena(
    table: Annotated[
        str | None,
        Parameter(help="A table, such as induction_head; all are listed without.", completer=table_names),
    ] = None,
    /,
    *,
    theories: Annotated[
        Path | None, Parameter(help="A folder with theories of your own, each a file with `fit` and `predict`.")
    ] = None,
    register: Annotated[
        bool, switch("Fit and register the theories whose source is not registered; nothing is scored.")
    ] = False,
    fresh: Annotated[
        int | None,
        Parameter(help="A key that draws fresh cells: theories predict them, then they are measured and scored."),
    ] = None,
    options: Common = COMMON,
) -> Report:
    """Score theories of a phenomenon on measurements that they were not fitted to."""
    from icllab.cli import scoring

    return scoring.arena(table, theories, register, fresh)


@app.command(sort_key=3, group=AUTHORS)
def certify(
    claim: Claim,
    /,
    *,
    to: Annotated[
        Path, Parameter(name=["--to", "-o"], help="The file: .html, with .json beside it; or .json alone.")
    ] = Path("certificate.html"),
    size: Annotated[Size | None, Parameter(help="The size to certify; the largest there unless said.")] = None,
    out: Annotated[
        Path | None, Parameter(help="Certify the results kept there; the data of the claim's record unless said.")
    ] = None,
    claims: ClaimsFolder = None,
    options: Common = COMMON,
) -> Report:
    """Write a claim's evidence as one file that prints on two pages: numbers, controls, digests, checklists."""
    from icllab.cli import certifying

    return certifying.certify(claim, to=to, size=size, out=out, claims=claims)


@app.command(sort_key=4, group=AUTHORS)
def verify(
    file: Annotated[Path, Parameter(help="The JSON file of a certificate.")],
    /,
    *,
    rerun: Annotated[
        str | None, Parameter(help="Measure a random part of the cells again, such as 5%; at least one.")
    ] = None,
    key: Annotated[int | None, whole("Key of that sample; drawn by the system unless said.")] = None,
    options: Folders = FOLDERS,
) -> Report:
    """Compute a certificate again from the data that it names: what agrees, what differs, what nobody can check."""
    from icllab.cli import certifying

    return certifying.verify(file, rerun=rerun, key=key, out=options.out, claims=options.claims)
