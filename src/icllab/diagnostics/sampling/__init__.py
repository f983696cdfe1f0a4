"""Samplers of a tempered posterior, one a file, and what says whether they have converged."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.sampling.hmc import HMC
    from icllab.diagnostics.sampling.mala import MALA
    from icllab.diagnostics.sampling.nuts import NUTS
    from icllab.diagnostics.sampling.rmsprop_sgld import RMSpropSGLD
    from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
    from icllab.diagnostics.sampling.sgld import SGLD
    from icllab.diagnostics.sampling.sgnht import SGNHT
    from icllab.diagnostics.sampling.smc import SMC

__all__ = ["HMC", "MALA", "NUTS", "SGLD", "SGNHT", "SMC", "RMSpropSGLD"]
__getattr__, __dir__ = attach(__name__)
