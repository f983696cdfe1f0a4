"""The compiled loop, which makes any number of steps of every member in one program.

First and last step are run-time numbers. A longer run, another key, other data or other swept numbers compile
nothing. Every step is the same machine code wherever a stretch of steps begins, so a run that was cut into other
stretches, or was interrupted, ends with the same bits.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from icllab.training.stopping import DIVERGED, RUNNING, AbstractRule
from icllab.training.streams import Stream, losses_at, mean_loss, scored_at
from icllab.training.sweeps import replaced, swept_optimizer

CAPACITY = 512  # steps whose losses are kept before the host must read them


class Constants(eqx.Module):
    """Values of one member that do not change in training.

    Attributes:
        key: Key of its prompts.
        frozen: Arrays of the predictor that are not trained.
        numbers: Swept numbers by name.
        data: Its fixed prompts, if every member has its own.
    """

    key: Key[Array, "..."]
    frozen: Any
    numbers: dict[str, Array]
    data: Any = None


class State(eqx.Module):
    """Values that a step changes.

    Attributes:
        params: The trained arrays.
        optimizer: The optimiser's state.
        rules: The state of each stop rule.
        status: Index into ``stopping.STATUS``.
        ended: Number of updates when the member ended; -1 while it runs.
        loss: The last losses, by position.
    """

    params: Any
    optimizer: Any
    rules: tuple[Any, ...]
    status: Int[Array, "..."]
    ended: Int[Array, "..."]
    loss: Float[Array, "... position"]


class Program(eqx.Module):
    """Values that all members share. Arrays (of the task, the rules, the data) are run-time values.

    Attributes:
        static: The predictor's parts that are not arrays.
        task: The distribution of prompts, and the loss.
        optimizer: An optimiser, or a factory of optimisers.
        rules: Stop rules.
        stream: How prompts are drawn.
        data: Fixed prompts that all members share.
        positions: Positions that are trained on.
        total: Number of positions of a prompt.
    """

    static: Any
    task: Any
    optimizer: Any
    rules: tuple[AbstractRule, ...]
    stream: Stream
    data: Any
    positions: tuple[int, ...] = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def losses(self, constants: Constants, params: Any, prompts: Any) -> Float[Array, " position"]:
        """Mean losses of one member on the given prompts, by position."""
        predictor = eqx.combine(params, constants.frozen, self.static)
        return losses_at(predictor, self.member_task(constants), prompts, self.positions, self.total)

    def member_task(self, constants: Constants) -> Any:
        """The task with the member's swept numbers."""
        return replaced(self.task, "task", constants.numbers)

    def start(self, constants: Constants, params: Any) -> State:
        """The state of one member before its first step."""
        with jax.numpy_dtype_promotion("standard"):
            optimizer = swept_optimizer(self.optimizer, constants.numbers).init(params)
        losses = eqx.filter_eval_shape(lambda: self.losses(constants, params, self.prompts_at(constants, jnp.int32(0))))
        loss = jnp.full((len(self.positions),), jnp.nan, losses.dtype)
        rules = tuple(rule.start(loss) for rule in self.rules)
        return State(params, optimizer, rules, jnp.int32(RUNNING), jnp.int32(-1), loss)

    def prompts_at(self, constants: Constants, step: Int[Array, ""]) -> Any:
        """The prompts of one step of one member."""
        return self.draw(constants, self.begin(constants, step), step)[0]

    def begin(self, constants: Constants, step: Int[Array, ""]) -> Any:
        """The state of a member's stream before ``step``."""
        return self.stream.begin(self.member_task(constants), constants.key, step)

    def draw(self, constants: Constants, stream_state: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """The prompts of ``step``, and the state of the stream after it."""
        data = self.data if constants.data is None else constants.data
        return self.stream.draw(self.member_task(constants), data, stream_state, constants.key, step)

    def update(self, constants: Constants, state: State, prompts: Any, step: Int[Array, ""]) -> State:
        """One step of a member that is still running."""

        def objective(params: Any) -> tuple[Array, Array]:
            losses = self.losses(constants, params, prompts)
            return mean_loss(losses, prompts, self.positions), losses

        (loss, losses), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
        looks = [rule.look(s, loss, step) for rule, s in zip(self.rules, state.rules, strict=True)]
        status = jnp.where(jnp.isfinite(loss), jnp.int32(RUNNING), jnp.int32(DIVERGED))
        for rule, (_, ends) in zip(self.rules, looks, strict=True):
            status = jnp.where((status == RUNNING) & ends, jnp.int32(rule.outcome), status)
        running = status == RUNNING
        # optax mixes types on purpose: counters, learning rates and parameters.
        with jax.numpy_dtype_promotion("standard"):
            optimizer = optax.with_extra_args_support(swept_optimizer(self.optimizer, constants.numbers))
            change, optimizer_state = optimizer.update(
                gradient,
                state.optimizer,
                state.params,
                value=loss,
                grad=gradient,
                value_fn=lambda params: objective(params)[0],
            )
            params = optax.apply_updates(state.params, change)
        after = (params, optimizer_state, tuple(s for s, _ in looks))
        before = (state.params, state.optimizer, state.rules)
        params, optimizer_state, rules = jax.tree.map(
            lambda a, b: jnp.where(running, a.astype(b.dtype), b) if eqx.is_array(b) else b, after, before
        )
        return State(params, optimizer_state, rules, status, jnp.where(running, jnp.int32(-1), step), losses)

    def step(
        self, constants: Constants, state: State, prompts: Any, step: Int[Array, ""], limit: Int[Array, ""]
    ) -> tuple[State, Float[Array, " position"]]:
        """One step of one member, and the losses to record: NaN if the member has stopped."""
        active = (state.status == RUNNING) & (step < limit)
        after = jax.lax.cond(active, lambda: self.update(constants, state, prompts, step), lambda: state)
        return after, jnp.where(active, after.loss, jnp.full_like(after.loss, jnp.nan))


@eqx.filter_jit
def start_members(program: Program, constants: Constants, params: Any) -> State:
    """The state of all members before the first step."""
    return jax.vmap(program.start)(constants, params)


@eqx.filter_jit
def advance(
    program: Program,
    mode: str,
    constants: Constants,
    state: State,
    first: Int[Array, ""],
    last: Int[Array, ""],
    limit: Int[Array, " member"],
) -> tuple[State, Float[Array, "capacity member position"]]:
    """Make the steps ``first`` to ``last`` (exclusive, at most ``CAPACITY``) of all members.

    Args:
        program: What members share.
        mode: ``"map"``: members one after the other; ``"vmap"``: side by side.
        constants: What belongs to each member.
        state: The state before ``first``.
        first: The first step.
        last: The step after the last.
        limit: A member makes only the steps before its limit.

    Returns:
        The state after the steps, and the losses of each.
    """

    def stretch(begin: Any, draw: Any, step: Any, constants: Any, state: State, limit: Array) -> tuple[State, Array]:
        def body(i: Array, carry: Any) -> Any:
            state, stream_state, losses = carry
            prompts, stream_state = draw(constants, stream_state, i)
            state, loss = step(constants, state, prompts, i, limit)
            return state, stream_state, losses.at[i - first].set(loss)

        losses = jnp.full((CAPACITY, *state.loss.shape), jnp.nan, state.loss.dtype)
        state, _, losses = jax.lax.fori_loop(first, last, body, (state, begin(constants, first), losses))
        return state, losses

    if mode == "map":

        def run(member: tuple[Constants, State, Array]) -> tuple[State, Array]:
            return stretch(program.begin, program.draw, program.step, *member)

        if limit.shape[0] == 1:
            after, losses = run(jax.tree.map(lambda leaf: leaf[0], (constants, state, limit)))
            return jax.tree.map(lambda leaf: leaf[None], after), losses[:, None]
        after, losses = jax.lax.map(run, (constants, state, limit))
        return after, jnp.swapaxes(losses, 0, 1)

    def over_members(function: Callable[..., Any], *rows: Any) -> Any:
        # A generator other than threefry gives other numbers under vmap: its prompts are drawn member by member.
        if str(jax.random.key_impl(constants.key)) != "threefry2x32":
            return jax.lax.map(lambda row: function(*row), rows)
        return jax.vmap(function)(*rows)

    return stretch(
        lambda constants, step: over_members(lambda c: program.begin(c, step), constants),
        lambda constants, stream_state, step: over_members(
            lambda c, s: program.draw(c, s, step), constants, stream_state
        ),
        jax.vmap(program.step, in_axes=(0, 0, 0, None, 0)),
        constants,
        state,
        limit,
    )


def finite_members(state: State) -> np.ndarray:
    """Test whether each member's parameters are finite, with NumPy to avoid a compilation."""
    leaves = [leaf for leaf in jax.tree.leaves(state.params) if eqx.is_inexact_array(leaf)]
    if jax.default_backend() != "cpu":
        return np.asarray(_finite(leaves))
    rows = [np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=1) for leaf in leaves]
    return np.all(rows, axis=0)


@eqx.filter_jit
def _finite(leaves: list[Array]) -> Bool[Array, " member"]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in leaves]), axis=0)


@eqx.filter_jit
def evaluate(
    program: Program, constants: Constants, params: Any, prompts: Any, shared: bool
) -> tuple[Float[Array, "member position"], Float[Array, "member position"]]:
    """Mean loss of every member on held-out prompts and its standard error, by position."""

    def member_losses(constants: Constants, params: Any, prompts: Any) -> tuple[Array, Array]:
        def loss(prompt: Any) -> Array:
            return program.losses(constants, params, jax.tree.map(lambda leaf: leaf[None], prompt))

        count = jax.tree.leaves(prompts)[0].shape[0]
        losses = jax.lax.map(loss, prompts, batch_size=min(count, 256))
        scored = scored_at(prompts, program.positions)
        if scored is not None:
            number = jnp.sum(scored, axis=0).astype(losses.dtype)
            error = jnp.std(losses, axis=0, ddof=1, where=scored) / jnp.sqrt(number)
            return jnp.mean(losses, axis=0, where=scored), error
        error = jnp.std(losses, axis=0, ddof=1) / count**0.5 if count > 1 else jnp.full(losses.shape[1:], jnp.nan)
        return jnp.mean(losses, axis=0), error

    if shared:
        return jax.lax.map(lambda member: member_losses(member[0], member[1], prompts), (constants, params))
    return jax.lax.map(lambda member: member_losses(*member), (constants, params, prompts))
