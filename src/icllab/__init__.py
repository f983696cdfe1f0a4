"""icl-lab: the laboratory for the theory of in-context learning.

Any task x any predictor x any diagnostic composes; every closed form is tested against a simulation
that shares no code with it; a claim is a small file that can be run and checked. Published claims are in
the distribution ``icl-lab-book``.

    import icllab as icl
    dataset = icl.run("asymptotics/double_descent", size="smoke")
    icl.draw(dataset).savefig("double_descent.pdf")
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.examination.examining import examine
    from icllab.lab.api import check, cite, draw, open, recorded, run
    from icllab.lab.export import export
    from icllab.lab.networks import checkpoints, network
    from icllab.training.compilation import cache_compilations
    from icllab.training.ensembles import ensemble
    from icllab.training.finished_runs import load
    from icllab.training.fitting import fit

__version__ = "0.4.0"

__all__ = [
    "algorithms",
    "check",
    "checkpoints",
    "cite",
    "constructions",
    "core",
    "diagnostics",
    "draw",
    "ensemble",
    "examination",
    "examine",
    "export",
    "figures",
    "fit",
    "lab",
    "load",
    "models",
    "network",
    "open",
    "posteriors",
    "recorded",
    "run",
    "tasks",
    "testing",
    "theory",
    "training",
]
__getattr__, __dir__ = attach(__name__)
