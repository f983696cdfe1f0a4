r"""Learning coefficients with a context and without: is the loss at w the more degenerate one?"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.sampling_warnings import errors_of_few
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.free_energies import MULTIPLICITIES
from icllab.diagnostics.singular.local_learning import coefficient_at_temperature

SIDES = ("few_shot", "zero_shot", "pushed_forward")
SHIFTS = (0.0, 2.0)  # of log nbeta in its own logarithm: between them the prior's scale puts a constant there
UNEQUAL = 0.1  # nats that the losses at the two points may differ by, times nbeta
USUAL = SMC(particles=1000, repeats=16)


class SquaredDistance(eqx.Module):
    """Half the squared distance of the selected weights from those at the point."""

    context_map: Any
    there: Any

    def __call__(self, w: Any) -> Array:
        """The number."""
        apart = ravel_pytree(self.context_map(w))[0] - ravel_pytree(self.there)[0]
        return jnp.sum(apart**2) / 2


def context_coefficients(
    few_shot: Callable[[Any], Any],
    zero_shot: Callable[[Any], Any],
    context_map: Callable[[Any], Any],
    at: Any,
    *,
    nbeta: float,
    localization: float,
    key: PRNGKeyArray,
    sampler: SMC = USUAL,
    multiplicities: Sequence[int] = MULTIPLICITIES,
) -> xr.Dataset:
    r"""The coefficients of the few-shot loss at w and of the zero-shot loss at :math:`f_c(w)`, and which is less.

    .. math:: \lambda_a \text{ of } K(w) \text{ at } w^*, \qquad
              \lambda_a^c \text{ of } K^{\mathrm{zs}}(w') \text{ at } f_c(w^*), \qquad
              \lambda_f \text{ of } \tfrac12\lVert f_c(w)-f_c(w^*)\rVert^2 \text{ at } w^*

    all at one :math:`n\beta`, under priors of one variance :math:`1/\gamma` around the points. If
    :math:`K = K^{\mathrm{zs}}\circ f_c` the sign of :math:`\lambda_a^c-\lambda_a` is set by the density of the
    pushed-forward prior at :math:`f_c(w^*)`. It diverges where :math:`\lambda_f` is below half the dimension of the
    image, which lowers :math:`\lambda_a`, and vanishes where it is above, which raises it. No sign is assumed.

    Each coefficient is the slope of a free energy on :math:`\log n\beta`, with :math:`(m-1)\log\log n\beta` taken out.
    A multiplicity is allowed if the slope that is left does not change between the lower and the upper half of the
    temperatures by more than three standard errors; if several are, the sign must be the same for all. With m > 1 a
    constant beside :math:`\log n\beta` in the double logarithm is unknown: 1, between 0 and 2, is taken.

    Args:
        few_shot: :math:`K(w)`, a function of parameters in nats per sample: the loss with the context.
        zero_shot: :math:`K^{\mathrm{zs}}(w')`, a function of what the map returns: the loss without it.
        context_map: :math:`f_c`, parameters -> parameters of the zero-shot loss.
        at: :math:`w^*`, a tree with arrays of one floating-point type.
        nbeta: Largest inverse temperature, at least 10; the smallest is its root, or a thousandth of it.
        localization: :math:`\gamma`, of all three.
        key: Key of everything that is drawn.
        sampler: Populations of the annealing.
        multiplicities: Values of m that are considered, at least one; one alone where m is known.

    Returns:
        Over ``side`` (``few_shot``, ``zero_shot``, ``pushed_forward``): ``estimate``, :math:`\lambda` at the
        ``multiplicity`` that leaves the slope most constant, and ``estimate_error``: the standard error over
        populations and, with m > 1, that of a constant anywhere between 0 and 2; ``baseline``, the
        loss at the point. Over ``side`` and ``candidate_multiplicity``: ``slope``, ``slope_error`` and ``allowed``.
        Over ``side`` and ``nbeta``: ``mean_estimate``, :math:`n\beta(E[K]-K^*)`, with its ``_error``.
        ``difference``, :math:`\lambda_a^c-\lambda_a`, and ``density_exponent``, :math:`\lambda_f` less half the
        dimension, each with an ``_error``. Attributes: ``sign`` (``"below"``: the few-shot coefficient is the smaller
        one, ``"above"``, or ``"tie"``: no sign can be told); ``density`` (``"diverges"``, ``"vanishes"``, ``"tie"``);
        ``image_dimension`` and ``warnings``.

    Raises:
        InputError: The map returns no finite parameters, no multiplicity is given, or as ``learning_coefficient``.

    Source: the hypothesis [SLT22].
    Derived: docs/routing.md, Few-shot and zero-shot.
    """
    candidates = tuple(int(m) for m in multiplicities)
    if not candidates or min(candidates) < 1:
        raise expected("multiplicities", "integers of at least 1", tuple(multiplicities))
    there = context_map(at)
    image = ravel_pytree(there)[0]
    if not image.size or not bool(jnp.isfinite(image).all()):
        raise expected("context_map", "a function of parameters with finite numbers", np.asarray(image).tolist())
    losses = (few_shot, zero_shot, SquaredDistance(context_map, there))
    rows: list[xr.Dataset] = []
    said: list[str] = []
    for i, (name, loss, point) in enumerate(zip(SIDES, losses, (at, there, at), strict=True)):
        own = jax.random.fold_in(key, i)
        how: dict[str, Any] = {"n": nbeta, "nbeta": nbeta, "localization": localization, "sampler": sampler}
        found = coefficient_at_temperature(loss, point, key=own, **how)
        # That the slope changes is what a multiplicity above one is told by.
        said += [f"{name}: {text}" for text in found.attrs["warnings"] if "slope still changes" not in text]
        rows.append(_fitted(found, candidates))
    whole = xr.concat(rows, xr.Variable("side", list(SIDES)))
    half, most = image.size / 2, errors_of_few(sampler.repeats)
    few, zero, pushed = (_allowed(one) for one in rows)
    signs = {_sign(b - a, np.hypot(p, q), most) for a, p in few for b, q in zero}
    densities = {_sign(half - a, p, most) for a, p in pushed}
    value, error, baseline = (np.asarray(whole[name]) for name in ("estimate", "estimate_error", "baseline"))
    numbers = {"difference": value[1] - value[0], "difference_error": float(np.hypot(error[0], error[1]))}
    numbers |= {"density_exponent": value[2] - half, "density_exponent_error": error[2]}
    gap = nbeta * abs(float(baseline[0] - baseline[1]))
    if gap > UNEQUAL:
        said.append(f"the losses at the two points differ by {gap:.2g}/nbeta: the energies are not equal")
    told = {"sign": ("above", "tie", "below"), "density": ("vanishes", "tie", "diverges")}
    words = {
        name: told[name][1 + (min(some) if len(some) == 1 else 0)]
        for name, some in (("sign", signs), ("density", densities))
    }
    return whole.assign(numbers).assign_attrs(**words, image_dimension=int(image.size), warnings=said)


def _sign(difference: float, error: float, most: float) -> int:
    """1 or -1, or 0 where zero is within so many errors."""
    return int(np.sign(difference)) if abs(difference) > most * error else 0


def _allowed(row: xr.Dataset) -> list[tuple[float, float]]:
    """Slopes with their errors, of every multiplicity that is allowed."""
    some = row.isel(candidate_multiplicity=row["allowed"].values)
    return list(zip(some["slope"].values.tolist(), some["slope_error"].values.tolist(), strict=True))


def _fitted(found: xr.Dataset, candidates: tuple[int, ...]) -> xr.Dataset:
    """Slopes of a free energy for every multiplicity, and which of these are allowed."""
    t, baseline = found["nbeta"].values, float(found["baseline"])
    energies = found["repeat_free_energy"].transpose("repeat", "nbeta").values - baseline * t
    repeats, middle = len(energies), len(t) // 2
    halves = (slice(middle, None), slice(middle + 1))

    def slopes(m: int, shift: float, part: slice = slice(None)) -> np.ndarray:
        x = np.log(t[part])
        values = energies[:, part] + (m - 1) * np.log(x + shift)
        return values @ (x - x.mean()) / np.sum((x - x.mean()) ** 2)

    def spread(of: Callable[[float], np.ndarray]) -> tuple[float, float]:
        """In the middle of the shifts, with the errors of populations and of a shift anywhere between the two."""
        (low, high), (value, error) = (of(shift).mean() for shift in SHIFTS), mean_and_error(of(sum(SHIFTS) / 2))
        return float(value), float(np.hypot(error, (low - high) / 12**0.5))

    rows = []
    for m in candidates:
        value, error = spread(lambda shift, m=m: slopes(m, shift))
        change, of_change = spread(lambda shift, m=m: slopes(m, shift, halves[0]) - slopes(m, shift, halves[1]))
        rows.append((value, error, abs(change), of_change))
    value, error, change, of_change = np.array(rows, float).T
    best = int(np.argmin(change))
    allowed = change <= errors_of_few(repeats) * of_change
    allowed[best] = True
    means = found["repeat_mean_loss"].transpose("nbeta", "repeat").values
    above, above_error = mean_and_error(t[:, None] * (means - baseline))
    return xr.Dataset(
        {
            "estimate": value[best],
            "estimate_error": error[best],
            "multiplicity": candidates[best],
            "baseline": baseline,
            "slope": ("candidate_multiplicity", value),
            "slope_error": ("candidate_multiplicity", error),
            "allowed": ("candidate_multiplicity", allowed),
            "mean_estimate": ("nbeta", above),
            "mean_estimate_error": ("nbeta", above_error),
        },
        coords={"candidate_multiplicity": list(candidates), "nbeta": t},
    )
