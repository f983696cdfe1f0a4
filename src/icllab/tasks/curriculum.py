"""A curriculum of prompts: few input dimensions and examples at first, more of both as training goes on."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected, kind_of, require_instance, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractTask
from icllab.tasks.regression_distributions import AbstractInputs, SparseWeights


class Curriculum(AbstractTask):
    r"""Prompts of a regression whose active dimensions and positions grow with the step of :func:`icllab.fit`.

    .. math:: d_t = \min(d,\; d_0 + a \lfloor t / \tau \rfloor), \qquad
              n_t = \min(\ell + 1,\; n_0 + b \lfloor t / \tau \rfloor)

    At step t coordinates of inputs from :math:`d_t` on are 0, before labels are computed of them, and positions from
    :math:`n_t` on are masked: they are in no loss and no gradient. Outside of ``fit``, and of its held-out and fixed
    prompts, it is the task at the end of the curriculum. Every step computes on prompts of the full length.

    Attributes:
        task: A regression with a distribution of inputs, such as :class:`~icllab.tasks.LinearRegression`; it has d
            and :math:`\ell`.
        dim: :math:`d_0` (static).
        positions: :math:`n_0`, examples of a prompt with its query (static).
        dim_increment: a (static).
        positions_increment: b (static).
        interval: :math:`\tau`, steps between two increments (static).
        step: t; None: the end.

    The defaults are the paper's for d = 20 and :math:`\ell` = 40, which grow from 5 dimensions and 11 positions.

    Source: [Garg22].
    """

    task: AbstractTask
    dim: int = eqx.field(static=True, default=5)
    positions: int = eqx.field(static=True, default=11)
    dim_increment: int = eqx.field(static=True, default=1)
    positions_increment: int = eqx.field(static=True, default=2)
    interval: int = eqx.field(static=True, default=2000)
    step: Int[Array, ""] | None = None

    def __check_init__(self) -> None:
        require_instance("task", self.task, AbstractTask, "a regression with a distribution of inputs")
        if not isinstance(getattr(self.task, "inputs", None), AbstractInputs):
            raise expected("task", "a regression with a distribution of inputs", kind_of(self.task))
        for name, most in (("dim", self.task.dim), ("positions", self.length + 1)):  # pyright: ignore[reportAttributeAccessIssue]
            Domain(int, least=1, most=most).require(name, getattr(self, name), "it grows to the task's own value")
        for name in ("dim_increment", "positions_increment", "interval"):
            require_integer(name, getattr(self, name))

    @property
    def length(self) -> int:
        r"""Examples before the last query at the end, :math:`\ell`."""
        return self.task.length  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def active_dim(self) -> Int[Array, ""]:
        """Input dimensions that are not 0 at the present step."""
        return self._grown(self.dim, self.dim_increment, self.task.dim)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def active_positions(self) -> Int[Array, ""]:
        """Positions that are not masked at the present step."""
        return self._grown(self.positions, self.positions_increment, self.length + 1)

    def at_step(self, step: Int[Array, ""]) -> "Curriculum":
        """The task at a step of training."""
        return dataclasses.replace(self, step=step)

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of full length at the present step, with a mask."""
        require_key(key)
        inputs = _Truncated(self.task.inputs, self.active_dim)  # pyright: ignore[reportAttributeAccessIssue]
        task = eqx.tree_at(lambda task: task.inputs, self.task, inputs)
        if isinstance(weights := getattr(task, "weights", None), SparseWeights):
            task = dataclasses.replace(task, weights=dataclasses.replace(weights, candidates=self.active_dim))
        prompt = task.sample(key=key)
        assert isinstance(prompt, RegressionPrompt)  # a task with inputs
        return RegressionPrompt(
            prompt.x, prompt.y, jnp.arange(self.length + 1, dtype=jnp.int32) < self.active_positions
        )

    def loss(self, prediction: Float[Array, " position"], prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The loss of the task; NaN where a position is masked."""
        return self.task.loss(prediction, prompt)

    def _grown(self, start: int, increment: int, end: int) -> Int[Array, ""]:
        if self.step is None:
            return jnp.asarray(end, jnp.int32)
        return jnp.minimum(start + increment * (self.step // self.interval), end).astype(jnp.int32)


class _Truncated(AbstractInputs):
    """Inputs whose coordinates from ``active`` on are 0."""

    inputs: AbstractInputs
    active: Int[Array, ""]

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One input."""
        return self._truncated(self.inputs.sample(dim, key=key)[None])[0]

    def sample_many(self, count: int, dim: int, *, key: PRNGKeyArray) -> Float[Array, "count dim"]:
        """Draw ``count`` independent inputs."""
        return self._truncated(self.inputs.sample_many(count, dim, key=key))

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        """The second moment of the active coordinates."""
        return self._truncated(self._truncated(self.inputs.second_moment(dim)).T)

    def _truncated(self, rows: Float[Array, "row dim"]) -> Float[Array, "row dim"]:
        active = jnp.broadcast_to((jnp.arange(rows.shape[1], dtype=jnp.int32) < self.active)[None], rows.shape)
        return jnp.where(active, rows, 0)
