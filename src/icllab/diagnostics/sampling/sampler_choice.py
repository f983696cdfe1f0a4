"""The default sampler and its length, chosen by the operations of a gradient: no clock decides."""

from dataclasses import replace

from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sgld import SGLD

BUDGET = 15.0  # nominal seconds of all chains
SHORTEST = 0.1  # of the moves of a sampler by default


def chosen_sampler(seconds: float, samples: int) -> tuple[ChainSampler, str]:
    """Hamiltonian Monte Carlo, or Langevin dynamics on batches, within a budget; and why, in a sentence.

    ``seconds`` are the nominal ones of the whole loss and its gradient; a loss without data has 0 ``samples``.
    """
    cost = f"the whole loss and its gradient nominally take {1e3 * seconds:.2g} ms"
    hmc, sgld = HMC(), SGLD()
    if SHORTEST * hmc.gradients * seconds <= BUDGET:
        return _shortened(hmc, seconds), f"{cost}: chains fit into {BUDGET:g} nominal seconds"
    if not samples:
        return _shortened(hmc, seconds), f"{cost}, and there are no data to draw batches of"
    if samples <= sgld.batch:
        return _shortened(hmc, seconds), f"{cost}, and all {samples} samples are one batch"
    batches = _shortened(sgld, seconds * sgld.batch / samples)
    return batches, f"{cost}, of {samples} samples: batches of {sgld.batch} cost less"


def _shortened(sampler: ChainSampler, seconds: float) -> ChainSampler:
    """A sampler with as many moves as fit into the budget, if a gradient takes this long; at least a tenth."""
    share = max(min(BUDGET / max(sampler.gradients * seconds, 1e-300), 1.0), SHORTEST)
    return sampler if share == 1 else replace(sampler, warm_up=round(share * sampler.warm_up))
