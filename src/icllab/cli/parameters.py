"""The parameters of commands: what several of them take, the options that belong together, and names to complete.

Importing this module must stay cheap: help and shell completion need it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from icllab.core.errors import expected

OUT = "icl-results"  # that of lab.job, which help does not import


def switch(help: str) -> Parameter:
    """An option without a value, which is off unless it is given."""
    return Parameter(negative="", show_default=False, help=help)


def whole(help: str) -> Parameter:
    """An option that is an integer; the parser would round others."""
    return Parameter(help=help, converter=lambda kind, tokens: int(tokens[0].value))


def claim_names(context: Any) -> Iterable[str]:
    """The claims of trusted books, and those from elsewhere; none is imported."""
    from icllab.lab import registry

    return [*registry.claims(), *registry.foreign()[0]]


def formula_names(context: Any) -> Iterable[tuple[str, str]]:
    """The formulas of ``icl theory``, with a line on each."""
    from icllab.cli import formulas

    return [(formula.name, formula.summary) for formula in formulas.listing().values()]


def table_names(context: Any) -> Iterable[tuple[str, str]]:
    """The tables of the arena, with their titles."""
    from icllab.arena import registry

    return [(name, registry.title(name)) for name in registry.tables()]


def problem_names(context: Any) -> Iterable[str]:
    """The posteriors of known answer."""
    from icllab import posteriors

    return posteriors.names()


Size: TypeAlias = Literal["smoke", "small", "medium", "full"]
Precision: TypeAlias = Literal["float32", "float64", "bfloat16"]
Claim: TypeAlias = Annotated[str, Parameter(help="A claim, as `icl list` names it.", completer=claim_names)]
Claims: TypeAlias = Annotated[
    str, Parameter(name="CLAIM", help="Claims, as `icl list` names them.", completer=claim_names)
]
Results: TypeAlias = Annotated[
    str,
    Parameter(
        name="CLAIM",
        help="A claim, as `icl list` names it; or a directory of results, or a .nc file.",
        completer=claim_names,
    ),
]
SeveralResults: TypeAlias = Annotated[
    str,
    Parameter(
        name="CLAIM",
        help="Claims, as `icl list` names them; or directories of results, or .nc files.",
        completer=claim_names,
    ),
]
ClaimsFolder: TypeAlias = Annotated[Path | None, Parameter(help="A folder with claim files of your own.")]
Control: TypeAlias = Annotated[
    str | None, Parameter(help="One of the claim's negative controls, under which it must fail.")
]
FromRecord: TypeAlias = Annotated[bool, switch("Read the data of the claim's record instead.")]
File: TypeAlias = Annotated[Path, Parameter(name=["--to", "-o"], help="The file to write.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options of every command; they are read before anything else is."""

    json: Annotated[bool, switch("Print one JSON object on stdout.")] = False
    debug: Annotated[bool, switch("Show tracebacks (or set ICL_DEBUG=1).")] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Folders(Common):
    """Directories of results and claims."""

    out: Annotated[Path, Parameter(help="Where results are kept.")] = Path(OUT)
    claims: ClaimsFolder = None


@Parameter(name="*")
@dataclass(frozen=True)
class Selection(Folders):
    """The results that a command reads."""

    size: Annotated[Size | None, Parameter(help="The size to read; the largest there unless said otherwise.")] = None
    control: Control = None


@Parameter(name="*")
@dataclass(frozen=True)
class NetworkOptions(Common):
    """Options that open a network by its name, and its checkpoints."""

    store: Annotated[
        Path | None, Parameter(help="Store of a run of icl.fit; the network is then file.py:build, which builds it.")
    ] = None
    family: Annotated[str | None, Parameter(name="--as", help="gpt2: the network is a .safetensors or .npz state.")] = (
        None
    )
    heads: Annotated[int | None, whole("Number of heads of such a state.")] = None
    checkpoints: Annotated[str | None, Parameter(help="Pattern of files, such as 'run/*.pt', opened by --load.")] = None
    load: Annotated[str | None, Parameter(help="file.py:load, a function of yours that opens the path of a file.")] = (
        None
    )

    def opened(self, name: str) -> Any:
        """Open the network of a name."""
        from icllab.lab import networks

        return networks.network(name, store=self.store, family=self.family, heads=self.heads)

    def checkpoint_networks(self) -> dict[int, Any]:
        """Open the checkpoints by step; none without ``--checkpoints``."""
        from icllab.lab import networks

        if (self.checkpoints is None) != (self.load is None):
            raise expected("--checkpoints and --load", "both or neither", (self.checkpoints, self.load))
        return {} if self.checkpoints is None else networks.checkpoints(self.checkpoints, str(self.load))


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions(NetworkOptions):
    """Options of ``icl run``, which a TOML file may have as well; None: not given."""

    network: Annotated[
        str | None,
        Parameter(help="A network of yours in the place of the claim's own: file.py:name, a folder of a model."),
    ] = None
    task: Annotated[str | None, Parameter(help="The task of its training; the claim's own prompts unless said.")] = None

    size: Annotated[Size | None, Parameter(help="How large a run; small unless said otherwise.")] = None
    set: Annotated[
        list[str] | None,
        Parameter(
            help="axis=v1,v2 or axis=start:stop:count: other values of an axis, or one of a fixed number. Repeatable.",
            negative="",
        ),
    ] = None
    seeds: Annotated[int | None, whole("Number of independent repetitions.")] = None
    out: Annotated[Path | None, Parameter(help=f"Where results are kept; {OUT} unless said otherwise.")] = None
    workers: Annotated[int | None, whole("Number of processes; 1 unless said otherwise.")] = None
    scheduler: Annotated[
        str | None,
        Parameter(help="Address of a dask scheduler to hand cells to."),
    ] = None
    limit: Annotated[
        float | None,
        Parameter(help="Seconds that a cell may take; then its process ends and another gets it. None unless said."),
    ] = None
    shard: Annotated[
        str | None, Parameter(help="i/N: only the cells of the i-th of N parts, for job arrays. The last one judges.")
    ] = None
    device: Annotated[
        str | None, Parameter(help="cpu, gpu, cuda:1: what to measure on; the first that JAX has unless said.")
    ] = None
    precision: Annotated[Precision | None, Parameter(help="Another than the claim's own.")] = None
    distributed: Annotated[
        str | None, Parameter(help="Join jax.distributed: HOST:PORT,N,I, or auto where the environment tells.")
    ] = None
    fresh: Annotated[bool, switch("Start again; the results that are there get another name.")] = False
    dry_run: Annotated[bool, switch("Say what would be measured, and at what cost; nothing is.")] = False
    control: Control = None
    claims: ClaimsFolder = None


@Parameter(name="*")
@dataclass(frozen=True)
class Sweep(Common):
    """The cells that a command is about, as ``icl run`` takes them."""

    size: Annotated[Size, Parameter(help="How large a run.")] = "small"
    set: Annotated[
        list[str] | None,
        Parameter(help="axis=v1,v2 or axis=start:stop:count: other values of an axis. Repeatable.", negative=""),
    ] = None
    seeds: Annotated[int | None, whole("Number of independent repetitions.")] = None
    control: Control = None
    claims: ClaimsFolder = None


@Parameter(name="*")
@dataclass(frozen=True)
class Batch(Sweep):
    """The jobs of ``icl claim submit``."""

    out: Annotated[Path | None, Parameter(help=f"Where results are kept, on a disk of all jobs; {OUT}.")] = None
    jobs: Annotated[int, whole("Number of jobs, which share the cells.")] = 4
    time: Annotated[str, Parameter(help="Time limit of a job: 4h, 90m, 1-12:00:00.")] = "4h"
    workers: Annotated[int, whole("Processes of a job, a core each.")] = 1
    memory: Annotated[int, whole("Gigabytes of a job.")] = 4
    partition: Annotated[str | None, Parameter(help="Slurm's partition.")] = None
    parameter: Annotated[
        list[str] | None,
        Parameter(
            help="NAME=VALUE of submitit, such as slurm_account=lab or gpus_per_node=1. Repeatable.", negative=""
        ),
    ] = None
    dry_run: Annotated[bool, switch("Say what would be submitted; nothing is.")] = False


COMMON, FOLDERS, SELECTION, RUN, SWEEP, BATCH = Common(), Folders(), Selection(), RunOptions(), Sweep(), Batch()


@Parameter(name="*")
@dataclass(frozen=True)
class ExamineOptions:
    """Sections, task and sample size of an examination."""

    task: Annotated[
        str | None,
        Parameter(help="Task of its training: 'linear_regression:raventos dim=8'; of a language model 'text FILE'."),
    ] = None
    only: Annotated[list[str] | None, Parameter(help="Sections to ask.")] = None
    skip: Annotated[list[str] | None, Parameter(help="Sections to leave out.")] = None
    minutes: Annotated[float, Parameter(help="Time that picks the size.")] = 5.0
    size: Annotated[Literal["small", "medium", "large"] | None, Parameter(help="Size that is fixed instead.")] = None
    key: Annotated[int, whole("Seed of all prompts.")] = 0
    trained_on: Annotated[int | None, whole("Number of training prompts.")] = None
    claims: Annotated[bool, switch("Measure the claims about such a network on it too.")] = False


NETWORK, EXAMINE = NetworkOptions(), ExamineOptions()
