r"""Linear regression in context; every convention on which papers disagree is a field.

.. math:: y_i = \langle w, x_i \rangle + \varepsilon_i, \qquad \varepsilon_i \sim N(0, \rho),
          \qquad i = 1, \dots, \ell + 1

with one task vector ``w`` per prompt. ``noise_variance`` is always a variance (Raventos et al. quote
the standard deviation), ``length`` counts the examples before the query.
"""

import math
import warnings
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import expected, require_instance, require_integer, require_key, require_known
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.regression import AbstractRegression, real, require_sizes
from icllab.tasks.regression_distributions import (
    AbstractInputs,
    AbstractWeights,
    GaussianInputs,
    GaussianWeights,
    SparseWeights,
    UniformInputs,
    WeightPool,
    require_dim,
    require_inputs,
)


class LinearRegression(AbstractRegression):
    """Prompts ``(x_i, y_i)`` of a random linear function; the loss is the squared error.

    Attributes:
        dim: Input dimension d (static).
        length: Examples before the query, ℓ (static); a prompt has ``length + 1`` positions.
        inputs: Distribution of ``x``: ``GaussianInputs`` (scalar, diagonal or full covariance) or ``UniformInputs``;
            ``ShiftedQuery`` of one for a query of another kind than the examples.
        weights: Distribution of ``w``: ``GaussianWeights``, ``SparseWeights``, or a finite ``WeightPool``.
        noise_variance: Label-noise variance ρ, also on the query's own label.
    """

    conventions: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"raventos": 0.5**2, "garg": 0.0, "vonoswald": 0.0, "ahn": 0.0, "timaeus": 0.125}
    )
    dim: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    inputs: AbstractInputs
    weights: AbstractWeights
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(real, "noise_variance"))

    def __check_init__(self) -> None:
        require_sizes(self, "dim", "length")
        NON_NEGATIVE.require_leaf("noise_variance", self.noise_variance)
        require_inputs(self.inputs)
        requirement = "a distribution of weights such as GaussianWeights(1.0)"
        require_instance("weights", self.weights, AbstractWeights, requirement)
        for name in ("inputs", "weights"):
            require_dim(name, getattr(self, name), self.dim)
        if isinstance(self.weights, SparseWeights):
            Domain(int, least=1, most=self.dim).require(
                "nonzero", self.weights.nonzero, "the task has no more dimensions"
            )
        if isinstance(self.weights, WeightPool) and isinstance(self.weights.weights, jax.Array | np.ndarray):
            shape = self.weights.weights.shape
            if shape[-1:] != (self.dim,):
                raise expected("weights", f"a pool of vectors of {self.dim} dimensions", f"shape {shape}")

    @classmethod
    def from_scaling(cls, *, dim: int, alpha: float, kappa: float, rho: float, key: PRNGKeyArray) -> "LinearRegression":
        r"""The proportional scaling of linear-attention theory.

        .. math:: \ell = \alpha d, \quad k = \kappa d, \quad x \sim N(0, I/d), \quad w_j \sim N(0, I)

        Lengths and pool sizes are rounded to the nearest integer (at least 1), with a warning where that changes them.
        ``kappa=inf`` means fresh Gaussian tasks in every prompt.

        Source: [Lu24].
        """
        require_integer("dim", dim)
        alpha, kappa, rho = (_item(value) for value in (alpha, kappa, rho))
        POSITIVE.require("alpha", alpha)
        Domain(above=0, infinite=True).require("kappa", kappa)
        NON_NEGATIVE.require("rho", rho)
        require_key(key)
        law = GaussianWeights(jnp.ones(()))
        weights = law if math.isinf(kappa) else WeightPool.init(law, _whole("kappa", kappa, dim), dim, key=key)
        inputs, noise_variance = GaussianInputs(jnp.ones(()) / dim), jnp.asarray(rho, law.covariance.dtype)
        return cls(dim, _whole("alpha", alpha, dim), inputs, weights, noise_variance)

    @classmethod
    def convention(cls, name: str, *, dim: int, length: int) -> "LinearRegression":
        """The setting of a paper, in the fields of this class.

        =============  ==================  ===========================  =====================================
        name           inputs              task vectors                 noise
        =============  ==================  ===========================  =====================================
        ``raventos``   :math:`N(0, I)`     :math:`N(0, I)`              variance 0.25 (their *std* is 0.5)
        ``garg``       :math:`N(0, I)`     :math:`N(0, I)`              none
        ``vonoswald``  uniform on (-1, 1)  :math:`N(0, I)`              none
        ``ahn``        :math:`N(0, I)`     :math:`N(0, I)`              none
        ``timaeus``    :math:`N(0, I)`     :math:`N(0, I)`              variance 0.125
        =============  ==================  ===========================  =====================================

        Pools and covariances are set by replacing ``weights`` or ``inputs``; Lu, Letey et al.'s scaling
        is :meth:`from_scaling`. How tokens are laid out is a matter of the model, not of the task.

        Source: [Raventos23], [Garg22], [vonOswald23], [Ahn23], [Hoogland24].
        """
        unit = jnp.ones(())
        require_known("convention", name, cls.conventions)
        inputs = UniformInputs(unit) if name == "vonoswald" else GaussianInputs(unit)
        return cls(dim, length, inputs, GaussianWeights(unit), jnp.asarray(cls.conventions[name], unit.dtype))

    def fresh(self) -> "LinearRegression":
        """The same task with a new task vector in every prompt, from the pool's distribution (ICL instead of IDG)."""
        law = self.weights.distribution if isinstance(self.weights, WeightPool) else self.weights
        return eqx.tree_at(lambda task: task.weights, self, law)

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` positions."""
        require_key(key)
        of_w, of_x, of_noise = jax.random.split(key, 3)
        w = self.weights.sample(self.dim, key=of_w)
        positions = self.length + 1
        x = self.inputs.sample_many(positions, self.dim, key=of_x)
        noise = jnp.sqrt(self.noise_variance) * jax.random.normal(of_noise, (positions,), x.dtype)
        return RegressionPrompt(x=x, y=x @ w + noise)


def _item(value: Any) -> Any:
    """The number in an array without axes; any other value unchanged."""
    return value.item() if isinstance(value, jax.Array | np.ndarray | np.generic) and not value.ndim else value


def _whole(name: str, ratio: float, dim: int) -> int:
    """``ratio * dim`` rounded to an integer of at least 1; warn if it was not an integer."""
    exact, whole = ratio * dim, max(1, round(ratio * dim))
    if abs(exact - whole) > 1e-9 * whole:
        warnings.warn(
            f"{name}: {ratio:g} * {dim} is not an integer; {whole} is used instead of {exact:g}", stacklevel=3
        )
    return whole
