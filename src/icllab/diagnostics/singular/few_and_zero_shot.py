r"""Learning coefficients with a context and without: is the loss at w the more degenerate one?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_instance, require_key
from icllab.core.progress import shows
from icllab.core.result_warnings import warns
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.sampling_warnings import errors_of_few
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.free_energies import MULTIPLICITIES
from icllab.diagnostics.singular.temperature_estimates import estimate_at_temperature
from icllab.models.pretrained.ignored_fields import names_ignored

SIDES = ("few_shot", "zero_shot", "pushed_forward")
SHIFTS = (0.0, 2.0)  # of log nbeta in its own logarithm: between them the prior's scale puts a constant there
SMALLEST = 0.05  # of a coefficient, that a difference from it has to be
UNEQUAL = 0.1  # nats that the losses at the two points may differ by, times nbeta
USUAL = SMC(particles=1000, repeats=16)
SIGNS, DENSITIES = ("above", "tie", "below"), ("vanishes", "tie", "diverges")


@dataclass(frozen=True)
class ZeroShot:
    r"""The loss without a context, as a function of the weights that the context selects.

    :func:`context_coefficients` estimates

    .. math:: \lambda_a \text{ of } K(w) \text{ at } w^*, \qquad
              \lambda_a^c \text{ of } K^{\mathrm{zs}}(w') \text{ at } f_c(w^*), \qquad
              \lambda_f \text{ of } \tfrac12\lVert f_c(w)-f_c(w^*)\rVert^2 \text{ at } w^*

    all at one :math:`n\beta`, under priors of one variance :math:`1/\gamma` around the points. If
    :math:`K = K^{\mathrm{zs}}\circ f_c` the sign of :math:`\lambda_a^c-\lambda_a` is set by the density of the
    pushed-forward prior at :math:`f_c(w^*)`. It diverges where :math:`\lambda_f` is below half the dimension of the
    image, which lowers :math:`\lambda_a`, and vanishes where it is above, which raises it. No sign is assumed.

    Each coefficient is the slope of a free energy on :math:`\log n\beta`, with :math:`(m-1)\log\log n\beta` taken out.
    A multiplicity is allowed if the slope that is left does not change between the lower and the upper half of the
    temperatures by more than three standard errors; if several are, the sign must be the same for all. A difference of
    less than 5 % of the larger coefficient has no sign: at a finite :math:`n\beta` slopes are off by as much as 3 %,
    of which their standard errors know nothing. With m > 1 a constant beside :math:`\log n\beta` in the double
    logarithm is unknown: 1, between 0 and 2, is taken.

    The result has, over ``side`` (``few_shot``, ``zero_shot``, ``pushed_forward``): ``estimate``, :math:`\lambda` at
    the ``multiplicity`` that leaves the slope most constant, and ``estimate_error``: the standard error over
    populations and, with m > 1, that of a constant anywhere between 0 and 2; ``baseline``, the loss at the point. Over
    ``side`` and ``candidate_multiplicity``: ``slope``, ``slope_error`` and ``allowed``. Over ``side`` and ``nbeta``:
    ``mean_estimate``, :math:`n\beta(E[K]-K^*)`, with its ``_error``. ``difference``, :math:`\lambda_a^c-\lambda_a`, and
    ``density_exponent``, :math:`\lambda_f` less half the dimension, each with an ``_error``. Attributes: ``sign``
    (``"below"``: the few-shot coefficient is the smaller one, ``"above"``, or ``"tie"``: no sign can be told);
    ``density`` (``"diverges"``, ``"vanishes"``, ``"tie"``); ``image_dimension`` and ``warnings``.

    Attributes:
        loss: :math:`K^{\mathrm{zs}}(w')`, a function of the image of the map, in nats per sample.
        context_map: :math:`f_c`, parameters -> parameters of the zero-shot loss.
        multiplicities: Values of m that are considered; a single one if m is known.

    Raises:
        InputError: No multiplicity of at least 1 is given.

    Source: the hypothesis [SLT22].
    Derived: docs/routing.md, Few-shot and zero-shot.
    """

    loss: Callable[[Any], Any]
    context_map: Callable[[Any], Any]
    multiplicities: Sequence[int] = MULTIPLICITIES

    def __post_init__(self) -> None:
        if not self.multiplicities or min(self.multiplicities) < 1:
            raise expected("multiplicities", "integers of at least 1", tuple(self.multiplicities))


class SquaredDistance(eqx.Module):
    """Half the squared distance of the selected weights from those at the point."""

    context_map: Any
    image: Any

    def __call__(self, w: Any) -> Array:
        """The number."""
        offset = ravel_pytree(self.context_map(w))[0] - ravel_pytree(self.image)[0]
        return jnp.sum(offset**2) / 2


@warns("learning coefficients")
@names_ignored
@shows("learning coefficients")
@of_posterior()
def context_coefficients(
    posterior: LocalPosterior,
    zero_shot: ZeroShot,
    *,
    key: PRNGKeyArray,
    sampler: SMC = USUAL,
    progress: bool | None = None,
) -> xr.Dataset:
    """Estimate the three coefficients of :class:`ZeroShot`, and which of the first two is smaller.

    Args:
        posterior: Few-shot loss near :math:`w^*`, with an ``nbeta`` of at least 10 and a ``localization``, which the
            other two share.
        zero_shot: Zero-shot loss, and the map of the context.
        key: Key of the populations.
        sampler: Number of populations and particles, and their moves.
        progress: Whether what is done and the time left are shown; None: on a terminal and in a notebook.

    Returns:
        The variables that :class:`ZeroShot` describes.

    Raises:
        InputError: There is no localization, the posterior has data or a prior, the sampler is not ``SMC()``, or the
            map has no finite numbers.
    """
    require_key(key)
    require_instance("zero_shot", zero_shot, ZeroShot, "a ZeroShot(loss, context_map)")
    for name in ("data", "weights", "prior", "n"):
        if getattr(posterior, name) is not None:
            raise expected(name, "None with zero_shot", kind_of(getattr(posterior, name)), "leave it out")
    if posterior.localization is None:
        raise expected("localization", "a number for all three losses", None)
    if not isinstance(sampler, SMC):
        raise expected("sampler", "SMC() with zero_shot", sampler)
    at, nbeta = posterior.at, posterior.temperature
    image = zero_shot.context_map(at)
    flat = ravel_pytree(image)[0]
    if not flat.size or not bool(jnp.isfinite(flat).all()):
        raise expected("context_map", "a function of parameters with finite numbers", np.asarray(flat).tolist())
    losses = (posterior.loss, zero_shot.loss, SquaredDistance(zero_shot.context_map, image))
    rows: list[xr.Dataset] = []
    sentences: list[str] = []
    for i, (name, loss, point) in enumerate(zip(SIDES, losses, (at, image, at), strict=True)):
        of_side = LocalPosterior(loss, point, nbeta=nbeta, localization=posterior.localization)
        slope = estimate_at_temperature(of_side, sampler=sampler, key=jax.random.fold_in(key, i))
        # A changing slope is the evidence for a multiplicity above one.
        sentences += [f"{name}: {text}" for text in slope.attrs["warnings"] if "slope still changes" not in text]
        rows.append(_fitted(slope, tuple(int(m) for m in zero_shot.multiplicities)))
    dataset = xr.concat(rows, xr.Variable("side", list(SIDES)))
    half, bound = flat.size / 2, errors_of_few(sampler.repeats)
    of_few, of_zero, of_distance = (_allowed(row) for row in rows)
    signs = {_sign(b - a, max(bound * np.hypot(p, q), SMALLEST * max(a, b))) for a, p in of_few for b, q in of_zero}
    densities = {_sign(half - a, max(bound * p, SMALLEST * half)) for a, p in of_distance}
    value, error, baseline = (np.asarray(dataset[name]) for name in ("estimate", "estimate_error", "baseline"))
    numbers = {"difference": value[1] - value[0], "difference_error": float(np.hypot(error[0], error[1]))}
    numbers |= {"density_exponent": value[2] - half, "density_exponent_error": error[2]}
    gap = nbeta * abs(float(baseline[0] - baseline[1]))
    if gap > UNEQUAL:
        sentences.append(f"the losses at the two points differ by {gap:.2g}/nbeta: the energies are not equal")
    return dataset.assign(numbers).assign_attrs(
        sign=SIGNS[1 + (min(signs) if len(signs) == 1 else 0)],
        density=DENSITIES[1 + (min(densities) if len(densities) == 1 else 0)],
        image_dimension=int(flat.size),
        warnings=sentences,
    )


def _sign(difference: float, least: float) -> int:
    """1 or -1, or 0 for a difference that is not beyond the ``least`` one."""
    return int(np.sign(difference)) if abs(difference) > least else 0


def _allowed(row: xr.Dataset) -> list[tuple[float, float]]:
    """Slopes with their errors, of every multiplicity that is allowed."""
    admissible = row.isel(candidate_multiplicity=row["allowed"].values)
    return list(zip(admissible["slope"].values.tolist(), admissible["slope_error"].values.tolist(), strict=True))


def _fitted(energies: xr.Dataset, candidates: tuple[int, ...]) -> xr.Dataset:
    """Slopes of a free energy for every multiplicity, and which of these are allowed."""
    t, baseline = energies["nbeta"].values, float(energies["baseline"])
    above_least = energies["repeat_free_energy"].transpose("repeat", "nbeta").values - baseline * t
    repeats, middle = len(above_least), len(t) // 2
    halves = (slice(middle, None), slice(middle + 1))

    def slopes(m: int, shift: float, part: slice = slice(None)) -> np.ndarray:
        x = np.log(t[part])
        values = above_least[:, part] + (m - 1) * np.log(x + shift)
        return values @ (x - x.mean()) / np.sum((x - x.mean()) ** 2)

    def spread(at_shift: Callable[[float], np.ndarray]) -> tuple[float, float]:
        """In the middle of the shifts, with the errors of populations and of a shift anywhere between the two."""
        low, high = (at_shift(shift).mean() for shift in SHIFTS)
        value, error = mean_and_error(at_shift(sum(SHIFTS) / 2))
        return float(value), float(np.hypot(error, (low - high) / 12**0.5))

    rows = []
    for m in candidates:
        value, error = spread(lambda shift, m=m: slopes(m, shift))
        change, of_change = spread(lambda shift, m=m: slopes(m, shift, halves[0]) - slopes(m, shift, halves[1]))
        rows.append((value, error, abs(change), of_change))
    value, error, change, of_change = np.array(rows, float).T
    best = int(np.argmin(change))
    admissible = change <= errors_of_few(repeats) * of_change
    admissible[best] = True
    means = energies["repeat_mean_loss"].transpose("nbeta", "repeat").values
    mean, mean_error = mean_and_error(t[:, None] * (means - baseline))
    return xr.Dataset(
        {
            "estimate": value[best],
            "estimate_error": error[best],
            "multiplicity": candidates[best],
            "baseline": baseline,
            "slope": ("candidate_multiplicity", value),
            "slope_error": ("candidate_multiplicity", error),
            "allowed": ("candidate_multiplicity", admissible),
            "mean_estimate": ("nbeta", mean),
            "mean_estimate_error": ("nbeta", mean_error),
        },
        coords={"candidate_multiplicity": list(candidates), "nbeta": t},
    )
