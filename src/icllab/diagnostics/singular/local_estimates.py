r"""One estimate of a learning coefficient, from the choice of the sampler to the warnings."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.curvature.krylov import spectral_measure
from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.langevin import Chains, sample, sample_batches
from icllab.diagnostics.sampling.no_u_turn import sample_no_u_turn
from icllab.diagnostics.sampling.posteriors import Posterior, Vector, steepest
from icllab.diagnostics.sampling.sampled_losses import (
    AtPoint,
    Batches,
    VectorLoss,
    at_point,
    batch_noise,
    gradient_seconds,
    require_mean,
    rows_of,
    vector_loss,
)
from icllab.diagnostics.sampling.sampler_choice import chosen_method, chosen_mode
from icllab.diagnostics.sampling.sampling_warnings import MOST_PULL, too_narrow, warnings
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures, stacked, with_growth

METHODS = ("hmc", "mala", "sgld", "nuts", "smc")
SGLD_SHARE = 0.1  # of the largest stable step's scale: a bias of at most 2.6 per cent on a quadratic
MOST_EIGENVALUES = 1500  # parameters up to which the Hessian is written out
PROBES, PRODUCTS = 4, 32  # of a quadrature of the Hessian beyond that
FOR_CURVATURE = 1024  # samples of the data whose mean Hessian is looked at
PULLS = (0.25, 4.0)  # times the localization, where it is varied
HALVINGS = 40  # of a start's distance from the point, where the loss is not finite
WITHOUT_CHAINS = ("step_size", "chains", "warm_up", "draws", "dispersion", "mode", "control", "sensitivity")


@dataclass(frozen=True)
class Sampling:
    """What is asked for of any loss at any temperature; see ``learning_coefficient``."""

    method: str
    batch: int
    localization: float | None
    step_size: float | None
    chains: int
    warm_up: int | None
    draws: int | None
    dispersion: float
    mode: str
    control: bool
    sensitivity: bool
    reason: str = "asked for"
    mode_reason: str = "asked for"

    @property
    def steps(self) -> tuple[int, int]:
        """Of the warm-up, and those that count."""
        warm_up = self.warm_up
        if warm_up is None:
            warm_up = 500 if self.method in ("hmc", "nuts") else 2000
        return warm_up, 2 * warm_up if self.draws is None else self.draws


def decided(settings: Sampling, loss: Any, at: Any, data: Any, key: PRNGKeyArray) -> Sampling:
    """The same with a method and a mode, and the reasons for them: by what gradients cost at the point."""
    flat, centre = vector_loss(loss, at, data)
    require_mean(flat, centre)
    known = at_point(flat, centre, batch=settings.batch)
    seconds = gradient_seconds(flat, centre, batch=settings.batch)
    if settings.method == "auto":
        samples = 0 if data is None else len(known.terms)
        method, reason = chosen_method(seconds, centre.size, samples, settings.batch)
        settings = replace(settings, method=method, reason=reason)
    if settings.method == "nuts":
        reason = "chains that end their trajectories are not kept waiting"
        return replace(settings, mode="map", mode_reason=reason)
    if settings.method == "smc":
        return settings
    here = _Here(settings, flat, centre, known)
    share = settings.batch / len(known.terms) if here.in_batches else 1.0
    one = jnp.ones((), centre.dtype)
    target = here.target(Posterior(flat, centre, one, one))
    starts = jnp.broadcast_to(centre, (settings.chains, centre.size))
    mode, reason = chosen_mode(settings.mode, target, starts, share * seconds, key)
    return replace(settings, mode=mode, mode_reason=reason)


def estimates(
    settings: Sampling, loss: Any, at: Any, data: Any, n: float | None, nbeta: Any, key: PRNGKeyArray
) -> xr.Dataset:
    """One estimate, or a curve of them.

    Args:
        settings: How, decided.
        loss: Of parameters, or of parameters and samples.
        at: The point.
        data: Samples, or None.
        n: How many :math:`n\\beta` is made of; None for an endless stream.
        nbeta: None, one, or at least four.
        key: Of the chains.

    Raises:
        InputError: As ``learning_coefficient``.
    """
    values, is_curve = inverse_temperatures(n, nbeta)
    if is_curve and settings.method == "smc":
        raise expected("nbeta", "one number with method 'smc'", values, "free_energy has a grid of its own")
    flat, centre = vector_loss(loss, at, data)
    known = at_point(flat, centre, batch=settings.batch)
    if not bool(jnp.isfinite(known.terms).all()):
        raise expected("loss", "a finite number at the point given", float(known.baseline.sum()))
    here = _Here(settings, flat, centre, known)
    found = [here.estimate(value, jax.random.fold_in(key, i)) for i, value in enumerate(values)]
    if n is not None:
        found = [one.assign_attrs(n=float(n)) for one in found]
    return with_growth(stacked(found, "nbeta", values)) if is_curve else found[0]


@dataclass(frozen=True)
class _Here:
    """A loss at a point, and what is known there before anything is drawn."""

    settings: Sampling
    loss: VectorLoss
    centre: Vector
    known: AtPoint

    @property
    def samples(self) -> int:
        """In the data; 0 of a loss without."""
        return 0 if self.loss.data is None else len(self.known.terms)

    @property
    def localization(self) -> float:
        """What was asked for, or one over the mean square of the parameters."""
        square = float(jnp.mean(self.centre**2))
        chosen = self.settings.localization
        return chosen if chosen is not None else (1 / square if square > 0 else 1.0)

    @property
    def in_batches(self) -> bool:
        """Whether a step has a batch of its own."""
        return self.settings.method == "sgld" and self.samples > self.settings.batch

    @cached_property
    def hessian(self) -> "_Hessian":
        """Products with it, of all data or of some."""
        loss = self.loss
        if self.samples > FOR_CURVATURE:
            rows = np.random.default_rng(0).choice(self.samples, FOR_CURVATURE, replace=False)
            loss = eqx.tree_at(lambda one: one.data, loss, rows_of(loss.data, rows))
        return _Hessian(loss, self.centre)

    def target(self, posterior: Posterior) -> Posterior | Batches:
        """What is sampled: the posterior, or that through batches."""
        if not self.in_batches:
            return posterior
        control = self.known.slope if self.settings.control else None
        return Batches(posterior, self.known.terms, control, self.settings.batch)

    @cached_property
    def noise(self) -> float:
        """Of the gradient of a batch: the trace of its covariance."""
        return batch_noise(self.loss, self.centre, batch=self.settings.batch)

    def starts(self, gamma: float, far: np.ndarray, key: PRNGKeyArray) -> Array:
        """Of the chains: the point, or away from it as far as the loss is finite."""
        # On the host: nothing of it needs to be compiled.
        centre = np.asarray(self.centre)
        away = np.random.default_rng(np.asarray(jax.random.key_data(key))).normal(size=(len(far), centre.size))
        apart = far[:, None] * self.settings.dispersion * gamma**-0.5 * away
        for i in np.flatnonzero(far) if not self.in_batches else ():
            # What starts outside has no way in: the loss is flat there. The programs are those of the point itself.
            for _ in range(HALVINGS):
                if self.is_finite(centre + apart[i]):
                    break
                apart[i] /= 2
            else:
                apart[i] = 0
        return jnp.asarray(centre[None] + apart, self.centre.dtype)

    def is_finite(self, w: np.ndarray) -> bool:
        """Whether the loss and its gradient are, of all the data."""
        found = at_point(self.loss, jnp.asarray(w, self.centre.dtype), batch=self.settings.batch)
        return bool(jnp.isfinite(found.terms).all() & jnp.isfinite(found.slope).all())

    def narrowness(self, seen: Posterior, places: Array, largest: float, key: PRNGKeyArray) -> float:
        """The localization's part of the largest curvature: that found already, or where the chains are."""
        gamma = float(seen.localization)
        if gamma > MOST_PULL * largest:
            # A singular loss may be flat at the point and steep beside it.
            found = [float(_steepest(seen, place, key)) for place in places]
            largest = max(largest, *(one for one in found if math.isfinite(one)), gamma)
        return gamma / largest

    def estimate(self, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
        """At one temperature."""
        how, dtype = self.settings, self.centre.dtype
        gamma = self.localization
        if how.method == "smc":
            return self._annealed(nbeta, gamma, key)
        keys = jax.random.split(key, 7)
        far = np.arange(how.chains) >= how.chains // 2
        starts = self.starts(gamma, far, keys[0])
        posterior = Posterior(self.loss, self.centre, jnp.asarray(nbeta, dtype), jnp.asarray(gamma, dtype))
        seen = eqx.tree_at(lambda p: p.loss, posterior, self.hessian.loss)
        curvature = float(_steepest(seen, self.centre, keys[1]))
        size = how.step_size
        if size is None:
            # Langevin dynamics keep their step: it must do where the chains start too.
            there = float(_steepest(seen, starts[-1], keys[1])) if how.method == "sgld" else 0.0
            size = (SGLD_SHARE if how.method == "sgld" else 1.0) / max(curvature, there, gamma)
        run = _Sampler(self, posterior, starts, gamma)
        baseline = self.known.baseline
        drawn = run(size, keys[3])
        rows = statistics(drawn, baseline, nbeta, far)
        rows["slope"] = nbeta**2 * float(jnp.sum(self.known.slope**2)) / max(curvature, gamma)
        rows["hessian_share"] = self.hessian.share(nbeta, gamma, rows["estimate"], keys[4])
        # Of the parameters' directions the localization holds so many, gamma E|w - w*|^2, if the loss is quadratic or
        # any other: where few, it does not decide, whatever the curvature.
        held = gamma * rows["distance"] ** 2 / self.centre.size
        narrow = self.narrowness(seen, drawn.last, curvature, keys[1]) if held > MOST_PULL else held
        rows["localization_share"] = min(held, narrow)
        if how.method == "sgld":
            halved = statistics(run(size / 2, keys[5], longer=True), baseline, nbeta, far)
            rows["halved_gap"] = halved["estimate"] - rows["estimate"]
            rows["halved_gap_error"] = math.hypot(halved["mcse"], rows["mcse"])
        if self.in_batches:
            rows["noise_bias"] = size * nbeta**2 * self.noise / 8
        if how.sensitivity:
            others = [
                statistics(run(size, key, pull=pull), baseline, nbeta, far)
                for pull, key in zip(PULLS, jax.random.split(keys[6]), strict=True)
            ]
            for name in ("estimate", "mcse"):
                values = np.array([one[name] for one in others])
                rows[f"localization_{name}"] = ("localization_factor", values)
            rows["localization_gap"] = others[0]["estimate"] - others[1]["estimate"]
            rows["localization_gap_error"] = math.hypot(others[0]["mcse"], others[1]["mcse"])
        warm_up, draws = how.steps
        chosen: dict[str, Any] = {"method": how.method, "reason": how.reason}
        chosen |= {"mode": how.mode, "mode_reason": how.mode_reason}
        chosen |= {"nbeta": nbeta, "localization": gamma, "parameters": int(self.centre.size)}
        chosen |= {"dispersion": float(how.dispersion), "warm_up": warm_up, "draws": draws}
        if self.in_batches:
            chosen |= {"batch": how.batch, "control": how.control}
        coordinates = {"localization_factor": list(PULLS)} if how.sensitivity else {}
        dataset = xr.Dataset(rows, coords=coordinates, attrs=chosen)
        return dataset.assign_attrs(warnings=warnings(dataset))

    def _annealed(self, nbeta: float, gamma: float, key: PRNGKeyArray) -> xr.Dataset:
        from icllab.diagnostics.singular.free_energies import annealed_coefficient

        found = annealed_coefficient(_Summed(self.loss), self.centre, nbeta=nbeta, localization=gamma, key=key)
        dtype = self.centre.dtype
        seen = Posterior(self.hessian.loss, self.centre, jnp.asarray(nbeta, dtype), jnp.asarray(gamma, dtype))
        far = np.arange(self.settings.chains) > 0
        places = replace(self, settings=replace(self.settings, dispersion=1.0)).starts(gamma, far, key)
        share = self.narrowness(seen, places, 0.0, key)
        said = [*found.attrs.get("warnings", []), *([too_narrow(share)] if share > MOST_PULL else [])]
        chosen = {"method": "smc", "reason": self.settings.reason, "nbeta": nbeta, "localization": gamma}
        chosen |= {"parameters": int(self.centre.size), "ignored": list(WITHOUT_CHAINS)}
        return found.assign(localization_share=share).assign_attrs(chosen | found.attrs | {"warnings": said})


@dataclass(frozen=True)
class _Sampler:
    """Chains of one method from the same starts, at any step size."""

    here: _Here
    posterior: Posterior
    starts: Array
    gamma: float

    def __call__(self, size: float, key: PRNGKeyArray, *, longer: bool = False, pull: float = 1.0) -> Chains:
        """Draw; ``longer``: twice as many steps, at no other program."""
        warm_up, draws = self.here.settings.steps
        method, dtype = self.here.settings.method, self.starts.dtype
        gamma = jnp.asarray(pull * self.gamma, dtype)
        posterior = eqx.tree_at(lambda p: p.localization, self.posterior, gamma)
        if method == "nuts":
            step = jnp.asarray(math.sqrt(size), dtype)
            return sample_no_u_turn(posterior, self.starts, step_size=step, warm_up=warm_up, draws=draws, key=key)
        step = jnp.asarray(size if method == "sgld" else math.sqrt(size), dtype)
        target, mode = self.here.target(posterior), self.here.settings.mode

        def go(starts: Array, warm_up: int, key: PRNGKeyArray) -> Chains:
            how: dict[str, Any] = {"step_size": step, "warm_up": jnp.asarray(warm_up), "draws": draws, "mode": mode}
            if isinstance(target, Batches):
                return sample_batches(target, starts, key=key, **how)
            return sample(target, starts, method=method, key=key, **how)

        if not longer:
            return go(self.starts, warm_up, key)
        one, two = jax.random.split(key)
        first = go(self.starts, 2 * warm_up, one)
        second = go(first.last, 0, two)
        return second._replace(
            terms=jnp.concatenate([first.terms, second.terms], axis=1),
            distance=jnp.concatenate([first.distance, second.distance], axis=1),
        )


class _Summed(eqx.Module):
    """A loss without its terms."""

    loss: VectorLoss

    def __call__(self, w: Any) -> Array:
        return jnp.sum(self.loss(w))


class _Hessian(eqx.Module):
    """Products of the Hessian with vectors."""

    loss: VectorLoss
    at: Vector

    def __call__(self, v: Vector) -> Vector:
        return jax.jvp(jax.grad(_Summed(self.loss)), (self.at,), (v,))[1]

    def share(self, nbeta: float, gamma: float, estimate: float, key: PRNGKeyArray) -> float:
        """What the Hessian alone explains of an estimate."""
        if not estimate > 0:
            return math.nan

        def counted(h: np.ndarray) -> np.ndarray:
            pull = nbeta * np.clip(h, 0, None)
            return pull / (pull + gamma) / 2

        if self.at.size <= MOST_EIGENVALUES:
            return float(np.sum(counted(np.linalg.eigvalsh(np.asarray(_written_out(self), np.float64))))) / estimate
        measure = spectral_measure(self, self.at.size, key=key, probes=PROBES, order=PRODUCTS, dtype=self.at.dtype)
        return measure.trace_of(counted).value / estimate


@eqx.filter_jit
def _written_out(product: _Hessian) -> Array:
    size = product.at.size
    return jax.lax.map(product, jnp.eye(size, dtype=product.at.dtype), batch_size=min(size, 64))


@eqx.filter_jit
def _steepest(posterior: Posterior, where: Vector, key: PRNGKeyArray) -> Array:
    return steepest(posterior, where=where, key=key)
