"""The default sampler, chosen by the operations of a gradient: no clock decides."""

from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sgld import SGLD

QUICK = 5e-3  # nominal seconds of a whole loss with its gradient below which nothing is gained by batches
BEARABLE, FEW = 5e-2, 20_000  # the same where there are not more than so many parameters


def chosen_sampler(seconds: float, parameters: int, samples: int) -> tuple[ChainSampler, str]:
    """Hamiltonian Monte Carlo, or Langevin dynamics on batches, with their defaults; and why, in a sentence.

    ``seconds`` are the nominal ones of the whole loss and its gradient; a loss without data has 0 ``samples``.
    """
    cost = f"the whole loss and its gradient nominally take {1e3 * seconds:.2g} ms"
    sgld = SGLD()
    if seconds < QUICK:
        return HMC(), f"{cost}, below {1e3 * QUICK:g}"
    if not samples:
        return HMC(), f"{cost}, and there are no data to draw batches of"
    if samples <= sgld.batch:
        return HMC(), f"{cost}, and all {samples} samples are one batch"
    if parameters <= FEW and seconds < BEARABLE:
        return HMC(), f"{cost}, below {1e3 * BEARABLE:g}, at {parameters} parameters, not above {FEW}"
    return sgld, f"{cost}, of {samples} samples with {parameters} parameters: batches of {sgld.batch} cost less"
