r"""Linear attention reduced to one matrix, which is solved for exactly instead of trained.

.. math:: \hat y = x^\top \Gamma h, \qquad
          h = \Big[\frac{d}{\ell} \sum_{i \le \ell} y_i x_i \,;\; \frac{1}{\ell} \sum_{i \le \ell} y_i^2\Big]

One head of linear attention on tokens ``(x, y)``, its value, key and query weights merged into
:math:`\Gamma \in \mathbb{R}^{d \times (d+1)}`. Its prediction is linear in :math:`\Gamma`, so pretraining is a
ridge regression with d(d+1) parameters and its population error is a quadratic form.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import expected, require_integer, unknown
from icllab.core.linalg import IterativeSolution
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.core.views import brief, fields_html, fields_repr, html_fields, one_line
from icllab.models.interventions.recording import Recorder
from icllab.models.reduced import factors, solvers
from icllab.models.reduced.choice import SOLVERS, Choice, choose
from icllab.models.reduced.samples import Samples, sample
from icllab.tasks.attention_features import feature_moments, prefix_features
from icllab.tasks.linear_regression import LinearRegression
from icllab.tasks.regression_distributions import AbstractWeights

_TOLERANCE: dict[str, float] = {"float32": 1e-5, "float64": 1e-8}


class SolveReport(eqx.Module):
    """Method and outcome of a fit.

    Attributes:
        solver: The solver taken.
        reason: Why it was taken, with the costs that were weighed.
        precision: Precision of the products of an iteration; residuals are float64 either way.
        iterations: Steps taken.
        residual: Relative residual of the system solved, recomputed in float64.
        tolerance: What the residual was to reach.
        converged: Whether it did.
    """

    solver: str = eqx.field(static=True)
    reason: str = eqx.field(static=True)
    precision: str = eqx.field(static=True)
    iterations: Int[Array, ""]
    residual: Float[Array, ""]
    tolerance: Float[Array, ""]
    converged: Bool[Array, ""]

    __repr__ = fields_repr
    _repr_html_ = fields_html


class ReducedLinearAttention(AbstractModel):
    """One reduced head of linear attention; activations ``features`` (h), ``weights`` (Γh) and ``prediction``.

    A prediction depends on Γ, ``gamma``, alone; ``task`` is what it was fitted on, for its population errors.
    """

    gamma: Float[Array, "dim feature"]
    task: LinearRegression
    report: SolveReport

    def __repr__(self) -> str:
        return one_line("ReducedLinearAttention", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Reduced linear attention", self._summary() | {"reason": self.report.reason})

    def _summary(self) -> dict[str, str]:
        report = self.report
        numbers = {name: brief(getattr(report, name)) for name in ("iterations", "residual", "tolerance", "converged")}
        return {"gamma": brief(self.gamma), "solver": report.solver} | numbers

    @property
    def converged(self) -> bool:
        """True if the fit reached its tolerance."""
        return bool(self.report.converged)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict at every position from the prefix before it; ``weights`` is the task vector that Γ infers there."""
        record = Recorder(edit)
        h = record("features", prefix_features(prompt))
        w = record("weights", h @ self.gamma.astype(h.dtype).T)
        return Trace(record("prediction", jnp.sum(prompt.x * w, axis=1)), record.activations)

    def population_error(
        self,
        task: LinearRegression | None = None,
        *,
        weights: AbstractWeights | Float[Array | np.ndarray, "task dim"] | None = None,
        length: int | None = None,
    ) -> float:
        r"""The exact error :math:`E (y - \hat y)^2` at the last position, including noise; float64, not traceable.

        On the task it was fitted on, or on another; with another distribution of task vectors or an explicit array of
        them, equally likely; and with another context length.

        Derived: docs/asymptotics.md, The population error.
        """
        moments = feature_moments(self.task if task is None else task, weights=weights, length=length)
        return moments.error(np.asarray(self.gamma, np.float64))

    def icl_error(self) -> float:
        """The population error on fresh tasks from the distribution of the pool's tasks."""
        return self.population_error(self.task.fresh())

    def idg_error(self) -> float:
        """The population error on the pretraining tasks."""
        return self.population_error()


def prompts_at(tau: float, dim: int, *, per: str = "d^2") -> int:
    r"""The number of prompts n at sample ratio :math:`\tau`, at least 1.

    ``per="d^2"`` is the papers' :math:`n = \tau d^2`; ``per="d(d+1)"`` counts parameters, so that the
    interpolation peak stands at :math:`\tau = 1` at every dimension.

    Source: [Lu24].
    """
    require_integer("dim", dim)
    units = {"d^2": dim * dim, "d(d+1)": dim * (dim + 1)}
    if per not in units:
        raise unknown("unit", per, units)
    POSITIVE.require("tau", tau)
    return max(1, round(tau * units[per]))


def fit(
    task: LinearRegression, *, prompts: int, ridge: float, key: PRNGKeyArray, **settings: Any
) -> ReducedLinearAttention:
    r"""Pretrain on ``prompts`` contexts of ``task`` to the minimum.

    .. math:: \Gamma^* = \arg\min_\Gamma \sum_{\mu=1}^n (y^\mu - x^{\mu\top} \Gamma h^\mu)^2
              + \frac{n}{d} \lambda \|\Gamma\|_F^2

    With :math:`\lambda = 0` and fewer than d(d+1) prompts, the solution of least Frobenius norm. Not traceable:
    the solver is chosen on the host, and each compiles once for a token dimension and a range of ``prompts``.

    Args:
        task: Gaussian inputs of any covariance, any distribution of task vectors.
        prompts: Number n of contexts.
        ridge: :math:`\lambda`.
        key: Key of the training set.
        **settings: ``solver``, ``precision``, ``tolerance`` and ``iterations`` of :func:`fit_features`.

    Returns:
        A model whose ``report`` says how it was solved. One that did not converge says so there.

    Raises:
        InputError: An argument is out of its range, a name is unknown, or the inputs are not Gaussian.

    Source: [Lu24].
    """
    return fit_features(task, sample(task, prompts=prompts, key=key), ridge=ridge, **settings)


def fit_features(
    task: LinearRegression,
    samples: Samples,
    *,
    ridge: float,
    solver: str = "auto",
    precision: str = "float32",
    tolerance: float | None = None,
    iterations: int = 5000,
) -> ReducedLinearAttention:
    """:func:`fit` on an existing training set; ``task`` is used only to define the errors.

    Args:
        task: As in :func:`fit`.
        samples: The training set.
        ridge: :math:`\\lambda`.
        solver: One of :data:`~icllab.models.reduced.choice.SOLVERS`, or the cheapest by estimate.
        precision: Precision of the products of an iteration. Γ has the dtype of the task.
        tolerance: Relative residual to reach; 1e-5 for float32 products, 1e-8 for float64.
        iterations: At most this many steps.
    """
    if solver not in ("auto", *SOLVERS):
        raise unknown("solver", solver, ("auto", *SOLVERS))
    if precision not in _TOLERANCE:
        raise unknown("precision", precision, _TOLERANCE)
    NON_NEGATIVE.require("ridge", ridge)
    tolerance = _TOLERANCE[precision] if tolerance is None else tolerance
    Domain(above=0, infinite=True).require("tolerance", tolerance)
    require_integer("iterations", iterations)
    if samples.dim != task.dim:
        raise expected("samples", f"the token dimension {task.dim} of the task", samples.dim)
    dtype = samples.query.dtype
    # Accelerators would otherwise round float32 products to ten bits.
    with jax.enable_x64(True), jax.default_matmul_precision("float32"):
        choice, solution = _solve(samples, float(ridge), solver, precision, tolerance, iterations)
        report = SolveReport(
            choice.solver,
            choice.reason,
            precision if choice.solver in ("primal_pcg", "dual_cg") else "float64",
            solution.iterations,
            solution.residual.astype(dtype),
            jnp.asarray(tolerance, dtype),
            solution.converged,
        )
        gamma = solution.value.astype(dtype)
    return ReducedLinearAttention(gamma, task, report)


def _solve(
    samples: Samples, ridge: float, solver: str, precision: str, tolerance: float, iterations: int
) -> tuple[Choice, IterativeSolution]:
    """Read the data once, choose a solver and solve, with float64 enabled."""
    n = int(samples.prompts)
    system = solvers.system(samples)
    spectrum = solvers.Spectrum.from_system(system)
    choice = Choice(solver, "asked for")
    if solver == "auto":
        query, feature = spectrum.query, spectrum.feature
        choice = choose(query, feature, prompts=n, ridge=ridge, precision=precision, tolerance=tolerance)
    shift, goal, limit = np.float64(n / samples.dim * ridge), np.float64(tolerance), np.int32(iterations)
    dtype = np.dtype(precision)
    match choice.solver:
        case "primal_pcg":
            whitening = spectrum.whitening(n, shift)
            solution = solvers.primal_pcg(samples, system.right, whitening, shift, goal, limit, dtype=dtype)
        case "dual_cg":
            solution = solvers.dual_cg(samples, shift, goal, limit, dtype=dtype)
        case "dual_cholesky":
            solution = factors.dual_cholesky(samples, float(shift), tolerance)
        case _:
            solution = factors.primal_cholesky(samples, float(shift), tolerance)
    return choice, solution
