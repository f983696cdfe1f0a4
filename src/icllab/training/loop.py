"""The compiled loop: any number of steps of every member, as one program.

First and last step are run-time numbers. A longer run, another key, other data or other swept numbers compile
nothing; and since every step is the same machine code wherever a stretch of steps begins, a run that was cut into
other stretches, or was interrupted, ends with the same bits.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from icllab.training.stopping import DIVERGED, RUNNING, AbstractRule
from icllab.training.streams import Stream, losses_at
from icllab.training.sweeps import replaced, swept_optimizer

CAPACITY = 512  # losses are kept for so many steps before the host must look
Mode = Literal["map", "vmap"]


class Constants(eqx.Module):
    """What a member has to itself and training does not change.

    Attributes:
        key: Key of its prompts.
        frozen: Arrays of the predictor that are not trained.
        numbers: Swept numbers by name.
        data: Its fixed prompts, where every member has its own.
    """

    key: Key[Array, "..."]
    frozen: Any
    numbers: dict[str, Array]
    data: Any = None


class State(eqx.Module):
    """What a step changes.

    Attributes:
        params: The trained arrays.
        optimizer: The optimiser's state.
        rules: The state of each stop rule.
        status: Index into ``stopping.STATUS``.
        ended: Steps done when the member ended; -1 while it runs.
        loss: The last losses, by position.
    """

    params: Any
    optimizer: Any
    rules: tuple[Any, ...]
    status: Int[Array, "..."]
    ended: Int[Array, "..."]
    loss: Float[Array, "... position"]


class Program(eqx.Module):
    """Everything members share. Arrays in it (the task's, the rules', the data) are run-time values.

    Attributes:
        static: What of the predictor is no array.
        task: The distribution of prompts, and the loss.
        optimizer: An optimiser, or a factory of them.
        rules: Stop rules.
        stream: How prompts are drawn.
        data: Fixed prompts that all members share.
        positions: Which are trained on.
        total: Positions of a prompt.
    """

    static: Any
    task: Any
    optimizer: Any
    rules: tuple[AbstractRule, ...]
    stream: Stream
    data: Any
    positions: tuple[int, ...] = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def predictor(self, constants: Constants, params: Any) -> Any:
        """One member as a predictor."""
        return eqx.combine(params, constants.frozen, self.static)

    def losses(self, constants: Constants, params: Any, prompts: Any) -> Float[Array, " position"]:
        """Mean losses of one member on some prompts, by position."""
        task = replaced(self.task, "task", constants.numbers)
        return losses_at(self.predictor(constants, params), task, prompts, self.positions, self.total)

    def start(self, constants: Constants, params: Any) -> State:
        """The state of one member before its first step."""
        with jax.numpy_dtype_promotion("standard"):
            optimizer = swept_optimizer(self.optimizer, constants.numbers).init(params)
        loss = jnp.full((len(self.positions),), jnp.nan, self._loss_type(constants, params))
        rules = tuple(rule.start(loss) for rule in self.rules)
        return State(params, optimizer, rules, jnp.int32(RUNNING), jnp.int32(-1), loss)

    def _loss_type(self, constants: Constants, params: Any) -> Any:
        return eqx.filter_eval_shape(
            lambda: self.losses(constants, params, self.prompts_at(constants, jnp.int32(0)))
        ).dtype

    def prompts_at(self, constants: Constants, step: Int[Array, ""]) -> Any:
        """The prompts of one step of one member."""
        return self.draw(constants, self.begin(constants, step), step)[0]

    def begin(self, constants: Constants, step: Int[Array, ""]) -> Any:
        """What the stream of a member's prompts hands on to a step."""
        return self.stream.begin(replaced(self.task, "task", constants.numbers), constants.key, step)

    def draw(self, constants: Constants, carried: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """The prompts of a step, and what the stream hands on to the next."""
        task = replaced(self.task, "task", constants.numbers)
        data = self.data if constants.data is None else constants.data
        return self.stream.draw(task, data, carried, constants.key, step)

    def update(self, constants: Constants, state: State, prompts: Any, step: Int[Array, ""]) -> State:
        """One step of a member that is still running."""

        def objective(params: Any) -> tuple[Array, Array]:
            losses = self.losses(constants, params, prompts)
            return jnp.mean(losses), losses

        (loss, losses), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
        looks = [rule.look(s, loss, step) for rule, s in zip(self.rules, state.rules, strict=True)]
        sound = jnp.isfinite(loss)
        status = jnp.where(sound, jnp.int32(RUNNING), jnp.int32(DIVERGED))
        for rule, (_, ends) in zip(self.rules, looks, strict=True):
            status = jnp.where((status == RUNNING) & ends, jnp.int32(rule.outcome), status)
        goes_on = status == RUNNING
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
        new = (params, optimizer_state, tuple(s for s, _ in looks))
        old = (state.params, state.optimizer, state.rules)
        params, optimizer_state, rules = jax.tree.map(
            lambda a, b: jnp.where(goes_on, a.astype(b.dtype), b) if eqx.is_array(b) else b, new, old
        )
        return State(params, optimizer_state, rules, status, jnp.where(goes_on, jnp.int32(-1), step), losses)

    def step(
        self, constants: Constants, state: State, prompts: Any, step: Int[Array, ""], limit: Int[Array, ""]
    ) -> tuple[State, Float[Array, " position"]]:
        """One step of one member, and the losses to record: NaN where it makes no step."""
        active = (state.status == RUNNING) & (step < limit)
        after = jax.lax.cond(active, lambda: self.update(constants, state, prompts, step), lambda: state)
        return after, jnp.where(active, after.loss, jnp.full_like(after.loss, jnp.nan))


@eqx.filter_jit
def started(program: Program, constants: Constants, params: Any) -> State:
    """The state of all members before the first step."""
    return jax.vmap(program.start)(constants, params)


@eqx.filter_jit
def advanced(
    program: Program,
    mode: str,
    constants: Constants,
    state: State,
    first: Int[Array, ""],
    last: Int[Array, ""],
    limit: Int[Array, " member"],
) -> tuple[State, Float[Array, "capacity member position"]]:
    """All members after the steps ``first`` to ``last`` (exclusive, at most ``CAPACITY``), and the losses of each.

    A member with a ``limit`` makes only the steps before it.
    """
    if mode == "map":

        def run(member: tuple[Constants, State, Array]) -> tuple[State, Array]:
            its, before, until = member

            def body(step: Array, carry: Any) -> Any:
                now, stream_state, history = carry
                prompts, stream_state = program.draw(its, stream_state, step)
                now, losses = program.step(its, now, prompts, step, until)
                return now, stream_state, history.at[step - first].set(losses)

            empty = jnp.full((CAPACITY, *before.loss.shape), jnp.nan, before.loss.dtype)
            stream_state = program.begin(its, first)
            after, _, history = jax.lax.fori_loop(first, last, body, (before, stream_state, empty))
            return after, history

        if limit.shape[0] == 1:
            after, history = run(jax.tree.map(lambda leaf: leaf[0], (constants, state, limit)))
            return jax.tree.map(lambda leaf: leaf[None], after), history[:, None]
        after, history = jax.lax.map(run, (constants, state, limit))
        return after, jnp.swapaxes(history, 0, 1)

    # A generator other than threefry gives other numbers under vmap: its prompts are drawn member by member.
    alone = str(jax.random.key_impl(constants.key)) != "threefry2x32"

    def over_members(function: Any) -> Any:
        return (lambda *a: jax.lax.map(lambda one: function(*one), a)) if alone else jax.vmap(function)

    def body(step: Array, carry: Any) -> Any:
        now, stream_state, history = carry
        prompts, stream_state = over_members(lambda its, its_own: program.draw(its, its_own, step))(
            constants, stream_state
        )
        now, losses = jax.vmap(lambda o, s, p, u: program.step(o, s, p, step, u))(constants, now, prompts, limit)
        return now, stream_state, history.at[step - first].set(losses)

    empty = jnp.full((CAPACITY, *state.loss.shape), jnp.nan, state.loss.dtype)
    stream_state = over_members(lambda its: program.begin(its, first))(constants)
    after, _, history = jax.lax.fori_loop(first, last, body, (state, stream_state, empty))
    return after, history


@eqx.filter_jit
def sound_members(state: State) -> Bool[Array, " member"]:
    """Which members' parameters are finite."""

    def sound(one: Any) -> Array:
        leaves = [leaf for leaf in jax.tree.leaves(one) if eqx.is_inexact_array(leaf)]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return jax.vmap(sound)(state.params)


@eqx.filter_jit
def evaluated(
    program: Program, constants: Constants, params: Any, prompts: Any, shared: bool
) -> tuple[Float[Array, "member position"], Float[Array, "member position"]]:
    """Mean loss of every member on held-out prompts and its standard error, by position."""

    def one(its: Constants, trained: Any, given: Any) -> tuple[Array, Array]:
        def loss(prompt: Any) -> Array:
            return program.losses(its, trained, jax.tree.map(lambda leaf: leaf[None], prompt))

        count = jax.tree.leaves(given)[0].shape[0]
        found = jax.lax.map(loss, given, batch_size=min(count, 256))
        error = jnp.std(found, axis=0, ddof=1) / count**0.5 if count > 1 else jnp.full(found.shape[1:], jnp.nan)
        return jnp.mean(found, axis=0), error

    if shared:
        return jax.lax.map(lambda member: one(member[0], member[1], prompts), (constants, params))
    return jax.lax.map(lambda member: one(member[0], member[1], member[2]), (constants, params, prompts))
