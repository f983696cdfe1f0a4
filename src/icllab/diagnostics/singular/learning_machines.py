r"""A sequence model as a learning machine whose loss is a sum over context lengths.

A window of C tokens is C - 1 samples, its prefixes, and one set of weights answers all of them. With N windows, and
counted :math:`v_l` times each (1 where all lengths are equal),

.. math:: L(w) = \sum_l v_l\,L^{(l)}(w), \qquad n_l = N v_l, \qquad
          N\,L(w) = \Bigl(\sum_l n_l\Bigr)\,\bar L(w), \qquad \bar L = \frac{L}{\sum_l v_l} .

Counted in windows, n = N and the loss is the sum L; counted in prefixes, :math:`n = \sum_l n_l` and the loss is the
mean :math:`\bar L`. At one :math:`\beta` the posterior is the same. The default :math:`\beta = 1/\log n` is not.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_integer, require_key, require_known
from icllab.core.protocols import AbstractTask, Predictor, declared, position_losses, require_prompts, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import (
    EveryPosition,
    answers_to,
    mean_over_prompts,
    means_and_errors,
    require_unmasked,
    sample_prompts,
)
from icllab.diagnostics.behaviour.lengths import counts_of
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
from icllab.diagnostics.singular.temperature_estimates import estimate_at_temperature
from icllab.training.streams import require_prediction

COUNTS = ("windows", "prefixes")
WORTH = 0.5  # nats of the posterior that a step along a gradient may gain at what is called a minimum


class LearningMachine(eqx.Module):
    r"""A model at its parameters :math:`w^*`, with the windows it is judged on.

    Attributes:
        model: Predictor of every position with floating-point arrays, which are its parameters.
        task: Task that owns the loss.
        windows: Prompts, stacked on a leading axis: the data.
        often: How often each length counts, :math:`v_l`.
    """

    model: Any
    task: AbstractTask
    windows: Any
    often: Float[np.ndarray, " position"]

    def __check_init__(self) -> None:
        require_unmasked("windows", self.windows)
        require_prompts(self.task, self.windows)

    @classmethod
    def from_task(
        cls,
        model: Predictor,
        task: AbstractTask,
        *,
        key: PRNGKeyArray,
        windows: int = 4096,
        counts: Sequence[float] | None = None,
    ) -> "LearningMachine":
        """With windows that are drawn from the task.

        Args:
            model: See the attributes; one that answers the last position only has but one length.
            task: Samples the windows.
            key: Key of the windows.
            windows: N, at least 2.
            counts: :math:`v_l` for each position; None: 1, as in a window.

        Raises:
            InputError: The model does not answer every position or cannot be traced, or the counts do not fit.
        """
        require_task(task)
        require_key(key)
        require_integer("windows", windows, least=2)
        is_predictor = callable(model) and not isinstance(model, type)
        if not is_predictor or declared(model, "positions") != "every" or not declared(model, "traceable"):
            raise expected("model", "a predictor of every position that can be traced", kind_of(model))
        data = sample_prompts(task, key=key, prompts=windows)
        prompt = jax.tree.map(lambda leaf: leaf[0], data)
        require_prediction(model, task, prompt)
        return cls(model, task, data, counts_of(prompt.positions, counts))

    @property
    def size(self) -> int:
        """N, how many windows there are."""
        return len(jax.tree.leaves(self.windows)[0])

    def samples(self, count: str = "windows") -> float:
        """n, in windows or in prefixes."""
        require_known("count", count, COUNTS)
        return float(self.size if count == "windows" else self.size * self.often.sum())

    def losses(self) -> xr.Dataset:
        """``loss`` over ``position`` with its ``standard_error`` over windows, ``loss_sum`` and ``loss_mean``."""
        losses = answers_to(EveryPosition(), self.model, self.task, self.windows)
        total = losses @ self.often
        numbers = means_and_errors({"loss_sum": total, "loss_mean": total / self.often.sum()})
        loss, error = mean_over_prompts(losses)
        return xr.Dataset(
            {name: float(number) for name, number in numbers.items()}
            | {"loss": ("position", loss), "standard_error": ("position", error)},
            coords={"position": np.arange(len(loss))},
            attrs={"windows": self.size},
        )

    @warns("learning coefficient")
    def contributions(
        self,
        *,
        key: PRNGKeyArray,
        count: str = "windows",
        gains: Sequence[int] | None = (),
        nbeta: float | None = None,
        localization: float | None = None,
        sampler: Sampler | str = "auto",
    ) -> xr.Dataset:
        r"""Contribution of each length to the learning coefficient of the whole.

        .. math:: c_l = n\beta\,v_l\,E\bigl[L^{(l)} - L^{(l)}(w^*)\bigr], \qquad \sum_l c_l = \hat\lambda

        with n in windows, under the posterior of the whole loss. They are no coefficients of machines of one length:
        the weights are shared, the posterior is that of all lengths together, and a length that others keep from its
        own minimum may have a negative contribution. See :meth:`coefficient_of` for what a length has alone.

        Args:
            key: Key of the chains.
            count: ``"windows"`` or ``"prefixes"``: what n counts.
            gains: Positions of which it is asked whether :math:`w^*` minimises them, see :meth:`gains`; None: all.
            nbeta: Inverse temperature; None: :math:`n/\log n`.
            localization: :math:`\gamma`; None: the default of
                :class:`~icllab.diagnostics.sampling.local_posteriors.LocalPosterior`.
            sampler: Sampler of chains.

        Returns:
            What :func:`~icllab.diagnostics.singular.coefficients.coefficient_at_temperature` returns, with
            ``contribution``, ``contribution_mcse`` and ``loss`` over ``position``, ``length_samples``, :math:`n_l`, and
            the posterior's ``contribution_covariance`` with its ``_mcse`` over ``position`` and ``other_position``;
            with ``gains`` also ``step_gain``, NaN at other positions.

        Raises:
            InputError: The windows have one length only, a position is not among them, the sampler has no chains
                and so no terms, or as ``coefficient_at_temperature``.

        Derived: docs/learning-machine.md, Contributions of terms that share parameters.
        """
        n = self.samples(count)
        often = self.often * self.size / n
        if len(often) < 2:
            raise expected("windows", "at least two lengths", len(often), "coefficient_of(0) has that of the only one")
        if not isinstance(sampler, ChainSampler | str):
            requirement = "one that draws chains, which have terms"
            raise expected("sampler", requirement, sampler, "HMC() is the usual one")
        selection = None if gains is None else self._among(gains)
        parameters, loss = self._split(often)
        posterior = LocalPosterior(loss, parameters, self.windows, n, nbeta, localization)
        estimate = estimate_at_temperature(posterior, key=key, sampler=sampler)
        names = {"term_estimate": "contribution", "term_mcse": "contribution_mcse"}
        names |= {f"term_covariance{end}": f"contribution_covariance{end}" for end in ("", "_mcse")}
        estimate = estimate.rename({"term": "position", "other_term": "other_position"} | names).drop_vars(
            "term_baseline"
        )
        places = np.arange(len(often))
        estimate = estimate.assign_coords(position=places, other_position=places)
        estimate = estimate.assign(length_samples=("position", self.size * self.often), loss=self.losses()["loss"])
        if selection is None or selection:
            estimate = estimate.assign(
                step_gain=self._gains_at(estimate, self.size / n, selection).reindex(position=places)
            )
        return estimate.assign_attrs(count=count)

    @warns("learning coefficient")
    def coefficient_of(
        self,
        position: int,
        *,
        key: PRNGKeyArray,
        nbeta: float | None = None,
        localization: float | None = None,
        sampler: Sampler | str = "auto",
    ) -> xr.Dataset:
        r"""The learning coefficient of the machine of one length, whose n is :math:`n_l`.

        The number is one of :math:`w^*` only if that minimises :math:`L^{(l)}`: where it does not at this resolution,
        a warning says so, and there is no coefficient.

        Args:
            position: l - 1.
            key: Key of the chains.
            nbeta: Inverse temperature; None: :math:`n_l/\log n_l`.
            localization: As in :meth:`contributions`.
            sampler: Sampler of chains, or ``SMC()``.

        Returns:
            What :func:`~icllab.diagnostics.singular.coefficients.coefficient_at_temperature` returns, with
            ``step_gain``, see :meth:`gains`.

        Raises:
            InputError: The position is not a length that counts, or as ``coefficient_at_temperature``.
        """
        if not (_is_place(position, len(self.often)) and self.often[position] > 0):
            raise expected("position", f"a length that counts, from 0 to {len(self.often) - 1}", position)
        mask = np.zeros_like(self.often)
        mask[position] = 1.0
        n = self.size * float(self.often[position])
        parameters, loss = self._split(mask, whole=True)
        posterior = LocalPosterior(loss, parameters, self.windows, n, nbeta, localization)
        estimate = estimate_at_temperature(posterior, key=key, sampler=sampler)
        machine = eqx.tree_at(lambda machine: machine.often, self, mask)
        gain = machine._gains_at(estimate, 1.0, [position]).isel(position=0, drop=True)
        sentences = list(estimate.attrs["warnings"])
        if gain > WORTH:
            sentences.append(
                f"the point does not minimise the loss at position {position}: a step would gain {float(gain):.2g}"
            )
        return estimate.assign(step_gain=gain).assign_attrs(warnings=sentences, position=position)

    def gains(
        self, *, nbeta: float, localization: float = 0.0, positions: Sequence[int] | None = None, block: int = 256
    ) -> xr.DataArray:
        r"""Gain of one step along the gradient of each length alone, in nats of its posterior.

        .. math:: \frac{(n\beta v_l\,|g|)^2}{2a}, \qquad a = n\beta v_l\,\frac{g^\top H g}{|g|^2} + \gamma, \qquad
                  g = \nabla L^{(l)}(w^*)

        the best step of a quadratic approximation, infinite where the loss curves down. Above a half
        :math:`w^*` does not minimise this length at the resolution; a small gain is necessary for that it does, not
        sufficient.

        Args:
            nbeta: Inverse temperature per window.
            localization: :math:`\gamma`.
            positions: Positions whose lengths are asked about; None: all.
            block: Windows that are differentiated at once.

        Raises:
            InputError: A position is not among those of a window.
        """
        selection = list(range(len(self.often))) if positions is None else self._among(positions)
        require_integer("block", block)
        parameters, loss = self._split(self.often)
        blocks = [jax.tree.map(lambda leaf, i=i: leaf[i : i + block], self.windows) for i in range(0, self.size, block)]
        shares = np.array([len(jax.tree.leaves(part)[0]) for part in blocks]) / self.size
        estimate = []
        for position in selection:
            at = jnp.asarray(position)

            def mean(function: Any, at: Array = at, **more: Any) -> Any:
                parts = [function(loss, parameters, part, at, **more) for part in blocks]
                return jax.tree.map(
                    lambda *leaves: sum(s * np.asarray(v) for s, v in zip(shares, leaves, strict=True)), *parts
                )

            gradient = mean(_gradient)
            like = jax.tree.map(lambda g, p: jnp.asarray(g, p.dtype), gradient, parameters)
            square = sum(float(np.sum(np.asarray(g, np.float64) ** 2)) for g in jax.tree.leaves(gradient))
            bend = float(mean(_curvature, direction=like))
            stiff = nbeta * bend / square + localization if square > 0 else 1.0
            estimate.append(nbeta**2 * square / (2 * stiff) if stiff > 0 else np.inf)
        return xr.DataArray(estimate, dims="position", coords={"position": selection}, name="step_gain")

    def _among(self, positions: Sequence[int]) -> list[int]:
        """Each once; JAX would answer for the last position where one is too large."""
        for position in positions:
            if not _is_place(position, len(self.often)):
                raise expected("positions", f"integers from 0 to {len(self.often) - 1}", position)
        return list(dict.fromkeys(int(position) for position in positions))

    def _gains_at(self, estimate: xr.Dataset, share: float, positions: Sequence[int] | None) -> xr.DataArray:
        """At the temperature and localization of an estimate; ``share``: windows of one sample."""
        nbeta, gamma = (float(estimate.attrs[name]) for name in ("nbeta", "localization"))
        return self.gains(nbeta=nbeta * share, localization=gamma, positions=positions)

    def _split(self, often: np.ndarray, *, whole: bool = False) -> tuple[Any, "_Terms"]:
        parameters, static = eqx.partition(self.model, eqx.is_inexact_array)
        leaves = jax.tree.leaves(parameters)
        if not leaves:
            raise expected("model", "a predictor with floating-point arrays", type(self.model).__name__)
        return parameters, _Terms(static, self.task, jnp.asarray(often, leaves[0].dtype), whole)


class _Terms(eqx.Module):
    """The losses of all lengths as terms, or their sum, for a sampler: the mean over windows."""

    static: Any
    task: AbstractTask
    often: Float[Array, " position"]
    whole: bool = eqx.field(static=True)

    def __call__(self, parameters: Any, windows: Any) -> Float[Array, "*position"]:
        model = eqx.combine(parameters, self.static)
        losses = jax.vmap(lambda prompt: position_losses(self.task, model(prompt), prompt))(windows)
        terms = self.often * jnp.mean(losses, axis=0)
        return jnp.sum(terms) if self.whole else terms


def _is_place(position: object, count: int) -> bool:
    return isinstance(position, Integral) and not isinstance(position, bool) and 0 <= int(position) < count


@eqx.filter_jit
def _gradient(loss: _Terms, parameters: Any, windows: Any, at: Array) -> Any:
    return jax.grad(lambda p: loss(p, windows)[at])(parameters)


@eqx.filter_jit
def _curvature(loss: _Terms, parameters: Any, windows: Any, at: Array, *, direction: Any) -> Float[Array, ""]:
    def slope(p: Any) -> Any:
        return jax.grad(lambda q: loss(q, windows)[at])(p)

    product = jax.jvp(slope, (parameters,), (direction,))[1]
    parts = [jnp.sum(a * b) for a, b in zip(jax.tree.leaves(direction), jax.tree.leaves(product), strict=True)]
    return jnp.sum(jnp.stack(parts))
