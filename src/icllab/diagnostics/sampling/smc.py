"""Sequential Monte Carlo: populations that follow a tempered posterior from the prior to a low temperature."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core import progress
from icllab.core.domains import POSITIVE, PROPER_FRACTION
from icllab.core.errors import expected, kind_of, require_integer, require_key
from icllab.diagnostics.sampling.chains import require_bounded
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian
from icllab.diagnostics.sampling.sampled_losses import require_mean, shape_of, vector_loss
from icllab.diagnostics.sampling.samplers import Sampler

ACCEPTANCE = 0.8  # what step sizes are adapted to
GAIN = 0.7  # of the logarithm of the step size, after every move
START = 0.3  # the first step size, in units of the prior
SPREAD = 0.7  # half-width, in logarithms, of the step sizes of one move
FIRST = 0.01  # of the usual loss of effective particles is the first step's: losses have heavy tails under the prior
RATIO = 2.0  # of neighbouring temperatures, at most
LEAST_MASS = 1e-4  # of the prior inside the region: below it the search ends


class Moves(NamedTuple):
    """Statistics of the moves at a temperature."""

    acceptance: float  # mean over moves
    step_size: float  # after the last one, in units of the prior
    moves: int  # trajectories
    correlation: float  # of the losses with those before, within populations


class Rung(NamedTuple):
    """One temperature: how it was reached, and the populations there after their moves, an entry for each."""

    temperature: float  # the inverse temperature t
    increment: np.ndarray  # -log of the mean weight
    share: np.ndarray  # effective particles over particles
    mean: np.ndarray  # of the loss
    variance: np.ndarray
    least: float  # loss of all
    observables: np.ndarray  # mean of the observables, [repeat, observable]
    moves: Moves


@dataclass(frozen=True)
class Populations:
    """Draws of a run from the prior to the last temperature, through all temperatures on the way.

    Attributes:
        rungs: The temperatures, the prior first.
        prior_mass: Share of the prior in the region, from each population.
        ancestors: Particles of the prior with descendants at the end, of each population.
        last: Particles at the end, [repeat, particle, parameter], in units of the prior around its centre.
        stops: Temperatures that were asked for.
        sampler: Sampler of the populations.
        precision: Half a unit in the last place of the loss, over the loss.
        localization: One over the variance of the prior.
    """

    rungs: list[Rung]
    prior_mass: np.ndarray
    ancestors: np.ndarray
    last: np.ndarray
    stops: np.ndarray
    sampler: "SMC"
    precision: float  # relative, of the loss
    localization: float = 1.0


class Whitened(eqx.Module):
    """A loss of parameters as one of a vector that is standard normal under the prior; infinite outside a region."""

    loss: Callable[[Any], Any]
    region: Callable[[Any], Any] | None
    centre: Float[Array, " parameter"]
    scale: Float[Array, " parameter"]
    unravel: Callable[[Any], Any] = eqx.field(static=True)
    static: Any = None  # leaves of the tree that are no floating-point arrays

    def parameters(self, z: Float[Array, " parameter"]) -> Any:
        """The tree at a point."""
        w = self.unravel(self.centre + self.scale * z)
        return w if self.static is None else eqx.combine(w, self.static)

    def __call__(self, z: Float[Array, " parameter"]) -> Float[Array, ""]:
        """The loss, or the sum of its terms."""
        w = self.parameters(z)
        value = jnp.sum(self.loss(w))
        if self.region is not None:
            value = jnp.where(self.region(w), value, jnp.inf)
        return jnp.where(jnp.isnan(value), jnp.inf, value)


@dataclass(frozen=True, kw_only=True)
class SMC(Sampler):
    r"""Sequential Monte Carlo: populations that follow a tempered posterior from the prior to a low temperature.

    At the inverse temperature t the target is

    .. math:: \pi_t(w) \propto e^{-tL(w)}\,\varphi(w), \qquad \varphi = \mathcal N(w_0, \gamma^{-1}I)
              \text{ restricted to a region},

    and :math:`Z(t) = \int_W e^{-tL}\varphi`. From t to :math:`t+\delta` every particle is weighted with
    :math:`e^{-\delta L}`, whose mean estimates :math:`Z(t+\delta)/Z(t)`; then the population is resampled,
    systematically, and moved by Hamiltonian Monte Carlo until its losses have forgotten where they started. Steps
    :math:`\delta` are as long as the weights of the worst population allow, a stated share of effective particles.
    Several populations go side by side. They share the temperatures and the step sizes and no random number, so that
    their spread is the error of their mean.

    A learning coefficient is the slope of the free energy :math:`-\log Z(t)` on :math:`\log t`, see
    :func:`annealed_slope <icllab.diagnostics.singular.free_energies.annealed_slope>`.

    Attributes:
        particles: Number of particles of each population, at least 10.
        repeats: Number of populations, at least 2.
        share: Effective particles after a step of temperature, over particles.
        leapfrogs: Mean number of leapfrog steps of a trajectory.
        moves: Least and largest number of trajectories at a temperature.
        forgotten: Correlation of losses with those before the moves, below which there are no more moves.

    Raises:
        InputError: A number is out of its range.

    Source: [DelMoral06].
    """

    particles: int = 500
    repeats: int = 8
    share: float = 0.9
    leapfrogs: int = 8
    moves: tuple[int, int] = (2, 10)
    forgotten: float = 0.3

    def __post_init__(self) -> None:
        PROPER_FRACTION.require("share", self.share)
        require_integer("particles", self.particles, least=10)
        require_integer("repeats", self.repeats, least=2)
        require_integer("leapfrogs", self.leapfrogs)
        if not (isinstance(self.moves, tuple | list) and len(self.moves) == 2):
            raise expected("moves", "two numbers, the least and the largest", self.moves)
        for count in self.moves:
            require_integer("moves", count)
        if not 1 <= self.moves[0] <= self.moves[1]:
            raise expected("moves", "a least number of at least 1 and a largest not below", self.moves)
        PROPER_FRACTION.require("forgotten", self.forgotten)

    @progress.shows("sampling")
    @of_posterior(position=1)
    def sample(
        self,
        posterior: LocalPosterior,
        *,
        key: PRNGKeyArray,
        region: Callable[[Any], Any] | None = None,
        observe: Callable[[Any], Any] | None = None,
        progress: bool | None = None,
    ) -> Populations:
        """Anneal populations through the temperatures of a posterior, around its point and inside a region.

        The other arguments are those of :func:`~icllab.diagnostics.singular.free_energies.free_energy`, which is a
        function of the result.
        """
        require_key(key)
        nbeta = posterior.temperature if posterior.nbeta is None else posterior.nbeta
        stops = np.unique(POSITIVE.read("nbeta", nbeta))
        if not stops.size:
            raise expected("nbeta", "finite numbers above 0, at least one", nbeta)
        if posterior.localization is None:
            raise expected("localization", "a number, the precision of the prior that SMC starts from", None)
        if posterior.prior is not None:
            raise expected("prior", "None with SMC, whose prior is the localization", posterior.prior, "leave it out")
        (part, at, _), loss = posterior.part, posterior.whole_loss
        require_mean(*vector_loss(part, at, posterior.data))
        flat, centre = vector_loss(loss, at, None)
        scale = jnp.full_like(centre, posterior.localization**-0.5)
        target = Whitened(loss, region, centre, scale, flat.unravel, flat.static)
        populations = self.path(target, stops=stops, key=key, observe=observe)
        return replace(populations, localization=float(posterior.localization))

    def path(
        self, loss: Whitened, *, stops: np.ndarray, key: PRNGKeyArray, observe: Callable[[Any], Any] | None = None
    ) -> Populations:
        """Take populations from the prior through all ``stops``, temperatures that are never stepped over.

        The means of what a function ``observe`` says of parameters are taken at every temperature.

        Raises:
            InputError: Less than one in ten thousand draws of the prior has a finite loss in the region, or the region
                is no function of one boolean.
        """
        _require_one_boolean(loss)
        # Drawn on the host: a random generator takes longer to compile than most losses.
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        z, losses, mass = _inside(loss, generator, self)
        level, precision = float(losses.min()), eqx.filter_eval_shape(loss, loss.centre).dtype
        ancestors = np.tile(np.arange(self.particles), (self.repeats, 1))
        size, zeros = START, np.zeros(self.repeats)
        moves = Moves(np.nan, size, 0, np.nan)
        rungs = [Rung(0.0, zeros, zeros + 1, *_measure(loss, observe, z, losses), moves)]
        ends, t = list(np.sort(stops)), 0.0
        progress.stage("annealing", 100, "per cent")
        while ends:
            progress.move_to(int(100 * np.log1p(t) / np.log1p(ends[-1])), f"nbeta {t:.3g} of {ends[-1]:.3g}")
            left = ends[0] - t
            share = self.share if t else 1 - FIRST * (1 - self.share)
            step = _longest(losses, share, min(left, t * (RATIO - 1)) if t else left)
            # A step that nearly reaches a stop is lengthened to it.
            new = ends.pop(0) if step > 0.999 * left else t + step
            increment, share = _weigh(losses, new - t)
            survivors = _resample(losses, new - t, generator.random((self.repeats, 1)))
            ancestors = np.take_along_axis(ancestors, survivors, axis=1)
            z = np.take_along_axis(z, survivors[..., None], axis=1)
            z, losses, moves = _move(_tempered(loss, new, level), z, size, generator, self)
            require_bounded(level, losses - level)
            size, t = moves.step_size, float(new)
            rungs.append(Rung(t, increment, share, *_measure(loss, observe, z, losses), moves))
        counts = np.asarray([np.unique(row).size for row in ancestors])
        return Populations(rungs, mass, counts, z, np.asarray(stops), self, float(jnp.finfo(precision).eps) / 2)


def _require_one_boolean(loss: Whitened) -> None:
    """Raise unless the region is one boolean: several would multiply the loss, a number but zero would be inside."""
    region = loss.region
    if region is None:
        return
    requirement = "a function of parameters with one boolean"
    if not callable(region):
        raise expected("region", requirement, kind_of(region))
    value = shape_of("region", requirement, lambda z: jnp.asarray(region(loss.parameters(z))), loss.centre)
    if value.shape or value.dtype != bool:
        came = f"{value.dtype}{list(value.shape)}"
        raise expected("region", requirement, came, "take jnp.all of several")


def _tempered(loss: Whitened, nbeta: float, level: float) -> Posterior:
    """Standard normal but for the loss, which is of the size of ``level``."""
    dtype = np.dtype(loss.centre.dtype)
    centre = jnp.asarray(np.zeros(loss.centre.shape, dtype))
    return Posterior(loss, centre, *(jnp.asarray(np.asarray(number, dtype)) for number in (nbeta, 1.0, level)))


def _inside(loss: Whitened, generator: np.random.Generator, sampler: SMC) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of the prior with a finite loss, their losses, and the share of all draws that they are."""
    repeats, particles = sampler.repeats, sampler.particles
    prior, dtype = _tempered(loss, 0.0, 0.0), np.dtype(loss.centre.dtype)
    points: list[list[np.ndarray]] = [[] for _ in range(repeats)]
    losses: list[list[np.ndarray]] = [[] for _ in range(repeats)]
    counts, total = np.zeros(repeats, int), 0
    while counts.min() < particles:
        z = generator.standard_normal((repeats, particles, loss.centre.size)).astype(dtype)
        values = _losses(_evaluated(prior, jnp.asarray(z.reshape(repeats * particles, -1))), sampler)
        total += particles
        for i, inside in enumerate(np.isfinite(values)):
            points[i].append(z[i][inside])
            losses[i].append(values[i][inside])
            counts[i] += inside.sum()
        if counts.sum() < LEAST_MASS * total * repeats and total * repeats > 10 / LEAST_MASS:
            requirement, hint = f"more than {LEAST_MASS:g} of the prior to have a finite loss in it", "in the region"
            if loss.region is None:
                requirement, hint = f"a finite number at more than {LEAST_MASS:g} of the prior", "where it is finite"
            name, came = "loss" if loss.region is None else "region", f"{counts.sum()} of {total * repeats}"
            raise expected(name, requirement, came, f"centre the prior {hint}")
    z, values = (np.stack([np.concatenate(parts)[:particles] for parts in kind]) for kind in (points, losses))
    return z, values, counts / total


def _longest(losses: np.ndarray, share: float, limit: float) -> float:
    """The largest step at which the weights of every population leave their share of effective particles."""

    def left(delta: float) -> float:
        return float(_weigh(losses, delta)[1].min())

    if left(limit) >= share:
        return limit
    high = 1 / max(float(losses.std(axis=1).max()), np.finfo(float).tiny)
    high = min(high, limit)
    while high < limit and left(high) >= share:
        high = min(2 * high, limit)
    low = 0.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) >= share else (low, middle)
    return low


def _weigh(losses: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Minus the logarithm of the mean weight, and the share of effective particles, of each population."""
    least = losses.min(axis=1)
    weights = np.exp(-delta * (losses - least[:, None]))
    mean = weights.mean(axis=1)
    return delta * least - np.log(mean), mean**2 / (weights**2).mean(axis=1)


def _resample(losses: np.ndarray, delta: float, offsets: np.ndarray) -> np.ndarray:
    """Indices of the particles after systematic resampling: each as often as its weight says, rounded up or down."""
    repeats, particles = losses.shape
    total = np.cumsum(np.exp(-delta * (losses - losses.min(axis=1, keepdims=True))), axis=1)
    places = (np.arange(particles) + offsets) / particles * total[:, -1:]
    survivors = np.stack([np.searchsorted(total[i], places[i]) for i in range(repeats)])
    return np.minimum(survivors, particles - 1)


def _move(
    posterior: Posterior, z: np.ndarray, size: float, generator: np.random.Generator, sampler: SMC
) -> tuple[np.ndarray, np.ndarray, Moves]:
    """Trajectories for all, until the losses have forgotten where they started or there have been enough."""
    (least, limit), middle = sampler.moves, sampler.leapfrogs
    flat = z.reshape(-1, z.shape[-1])
    states = _evaluated(posterior, jnp.asarray(flat))
    before = losses = _losses(states, sampler)
    acceptance, moves, correlation = 0.0, 0, 1.0
    while moves < least or (correlation > sampler.forgotten and moves < limit):
        length = generator.integers(middle - middle // 2, middle + middle // 2 + 1)
        noise = generator.standard_normal(flat.shape)
        sizes = size * np.exp(generator.uniform(-SPREAD, SPREAD, (len(flat), 1)))
        numbers = (jnp.asarray(a.astype(flat.dtype)) for a in (noise, sizes, generator.random(len(flat))))
        states, chances = _trajectories(posterior, states, jnp.asarray(length), *numbers)
        losses = _losses(states, sampler)
        mean = float(np.asarray(chances).mean())
        size *= float(np.exp(GAIN * (mean - ACCEPTANCE)))
        acceptance, moves, correlation = acceptance + mean, moves + 1, _correlation(before, losses)
    return np.asarray(states.w).reshape(z.shape), losses, Moves(acceptance / moves, size, moves, correlation)


def _losses(states: ChainState, sampler: SMC) -> np.ndarray:
    return np.asarray(states.loss, np.float64).reshape(sampler.repeats, sampler.particles)


def _correlation(before: np.ndarray, now: np.ndarray) -> float:
    """Within populations, pooled over them; 0 where nothing varies."""
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (before, now))
    spread = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / spread if spread > 0 else 0.0


def _measure(
    loss: Whitened, observe: Any, z: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    means = np.zeros((len(values), 0))
    if observe is not None:
        numbers = np.asarray(_observed(loss, observe, jnp.asarray(z)), np.float64)
        means = numbers.reshape(*values.shape, -1).mean(axis=1)
    return values.mean(axis=1), values.var(axis=1, ddof=1), float(values.min()), means


@eqx.filter_jit
def _observed(loss: Whitened, observe: Callable[[Any], Any], z: Array) -> Array:
    return jax.vmap(jax.vmap(lambda point: observe(loss.parameters(point))))(z)


# What is compiled for every loss anew is this, and no more.
@eqx.filter_jit
def _evaluated(posterior: Posterior, w: Float[Array, "all parameter"]) -> ChainState:
    return ChainState(w, *jax.vmap(posterior.loss_and_slope)(w))


@eqx.filter_jit
def _trajectories(
    posterior: Posterior, states: ChainState, length: Array, noise: Array, sizes: Array, chance: Array
) -> tuple[ChainState, Array]:
    return hamiltonian(posterior, jax.vmap(posterior.loss_and_slope), states, noise, sizes, length, chance)
