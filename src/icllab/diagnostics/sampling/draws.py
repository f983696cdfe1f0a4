"""Draws of a posterior by Markov chains, with a sampler that is given or chosen by the cost of a gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.progress import shows
from icllab.core.result_warnings import warns
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.sampler_choice import chosen_sampler
from icllab.diagnostics.sampling.samplers import ChainSampler, Draws


@warns("posterior draws")
@shows("posterior draws")
@of_posterior()
def posterior_draws(
    posterior: LocalPosterior,
    *,
    key: PRNGKeyArray,
    sampler: ChainSampler | str = "auto",
    observables: Mapping[str, Callable[[Any], Any]] | None = None,
    progress: bool | None = None,
) -> Draws:
    r"""Draw from a posterior: the chains of ``coefficient_at_temperature`` with the same key and sampler.

    Args:
        posterior: Loss near a point.
        key: Key of the chains.
        sampler: Sampler of chains; ``"auto"``: by the cost of a gradient.
        observables: Name -> array of the parameters, which is kept of every draw in their place; None: parameters.
        progress: Whether moves and the time left are shown; None: on a terminal and in a notebook.

    Returns:
        Draws: ``tree``, parameters with leading axes (chain, draw); ``losses``, :math:`L(w) - L(w^*)`; ``observed``;
        ``warnings()``, a list of sentences. Coefficients, susceptibilities and covariances are functions of them.

    Raises:
        InputError: The posterior has no temperature, or the sampler has no chains.
    """
    require_key(key)
    if sampler == "auto":
        local = posterior.local_loss()
        sampler, _ = chosen_sampler(local.seconds, local.samples)
    if not isinstance(sampler, ChainSampler):
        raise expected("sampler", "'auto' or a sampler of chains, such as HMC()", sampler)
    return sampler.sample(posterior, key=jax.random.fold_in(key, 0), observables=observables)
