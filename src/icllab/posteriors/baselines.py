"""Linear regressions on which L(w*) is estimated badly, or batches are noisy; the posterior is normal."""

import numpy as np

from icllab.posteriors.data import SAMPLES, SETTINGS, linear
from icllab.posteriors.problems import family


@family("losses_with_offsets", "baseline", *SETTINGS)
def _(rng, nbeta, gamma):
    # The mean of a few samples says nothing of the mean of all.
    return linear(rng, 5, nbeta, gamma, offset=10 * rng.standard_t(2, SAMPLES + 1))


@family("beside_the_minimum", "baseline", *SETTINGS)
def _(rng, nbeta, gamma):
    away = rng.normal(size=4)
    return linear(rng, 4, nbeta, gamma, at=lambda best, truth, x: best + 0.15 * away, limit=False)


@family("at_the_truth", "baseline", *SETTINGS)
def _(rng, nbeta, gamma):
    # Samples of the posterior have lower losses than the parameters that the data were drawn with.
    return linear(rng, 8, nbeta, gamma, noise=1.0, at=lambda best, truth, x: truth, limit=False)


@family("leverage", "baseline", *SETTINGS)
def _(rng, nbeta, gamma):
    weights = np.where(np.arange(SAMPLES + 1) % 10 == 0, 6.0, 0.5)
    return linear(rng, 3, nbeta, gamma, weights=weights, noise=2.0)
