r"""Stop rules on a member's loss, evaluated in the compiled loop.

A rule's numbers are leaves, so that another threshold compiles nothing. A rule sees the loss on the step's own
prompts, which is noisy; exponential averaging over ``memory`` steps reduces the noise:

.. math:: m_t = m_{t-1} + (L_t - m_{t-1}) / \min(t + 1, \text{memory})
"""

import abc
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from icllab.core.errors import expected, kind_of, require_integer

RUNNING, STOPPED, DIVERGED = 0, 1, 2
STATUS = ("ok", "stopped", "diverged")


def _positive(name: str, value: Any) -> Array:
    real = isinstance(value, Real | np.ndarray | jax.Array) and not isinstance(value, bool)
    number = jnp.asarray(value, float) if real else jnp.full((), jnp.nan)
    if number.ndim != 0 or not bool(number > 0):
        raise expected(name, "a number > 0", value)
    return number


class AbstractRule(eqx.Module):
    """A stop rule: for each member it keeps a state, reads one loss per step, and decides if that step is the last."""

    outcome: ClassVar[int] = STOPPED

    @abc.abstractmethod
    def start(self, like: Array) -> Any:
        """The state before the first step, with the dtype of ``like``."""

    @abc.abstractmethod
    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """The state after a loss, and whether the member stops here."""


def _average(mean: Array, loss: Array, step: Array, memory: Array) -> Array:
    count = jnp.minimum((step + 1).astype(loss.dtype), memory.astype(loss.dtype))
    return mean + (loss - mean) / count


class TargetLoss(AbstractRule):
    """Stop once the averaged loss is at most ``value``."""

    value: Float[Array, ""] = eqx.field(converter=lambda v: _positive("value", v))
    memory: Float[Array, ""] = eqx.field(default=1.0, converter=lambda v: _positive("memory", v))

    def start(self, like: Array) -> Any:
        """The initial average."""
        return jnp.zeros((), like.dtype)

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Compare the average with ``value`` after ``memory`` losses."""
        mean = _average(state, loss, step, self.memory)
        enough = (step + 1).astype(loss.dtype) >= self.memory.astype(loss.dtype)
        return mean, enough & (mean <= self.value.astype(loss.dtype))


class Divergence(AbstractRule):
    """Give up if the loss is more than ``factor`` times its value at the first step.

    A loss or parameters that are not finite end a member under any rule.
    """

    outcome: ClassVar[int] = DIVERGED
    factor: Float[Array, ""] = eqx.field(default=1e3, converter=lambda v: _positive("factor", v))

    def start(self, like: Array) -> Any:
        """The first loss as the state."""
        return jnp.zeros((), like.dtype)

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Compare with the first loss."""
        first = jnp.where(step == 0, loss, state)
        return first, (first > 0) & (loss > self.factor.astype(loss.dtype) * first)


class Plateau(AbstractRule):
    """Stop once ``steps`` steps have lowered the averaged loss by less than the fraction ``improvement``."""

    steps: Float[Array, ""] = eqx.field(default=1000.0, converter=lambda v: _positive("steps", v))
    improvement: Float[Array, ""] = eqx.field(default=0.01, converter=lambda v: _positive("improvement", v))
    memory: Float[Array, ""] = eqx.field(default=100.0, converter=lambda v: _positive("memory", v))

    def start(self, like: Array) -> Any:
        """The average, the average to compare with, and the step of the comparison."""
        zero = jnp.zeros((), like.dtype)
        return zero, jnp.full((), jnp.inf, like.dtype), zero

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Compare with the average ``steps`` earlier, every ``steps`` steps."""
        mean, anchor, since = state
        mean, now = _average(mean, loss, step, self.memory), (step + 1).astype(loss.dtype)
        due = now - since >= self.steps.astype(loss.dtype)
        bar = (1 - self.improvement.astype(loss.dtype)) * anchor
        stop = due & jnp.isfinite(anchor) & (mean > bar)
        return (mean, jnp.where(due, mean, anchor), jnp.where(due, now, since)), stop


@dataclass(frozen=True, init=False)
class Until:
    """Length of training: a largest number of updates, and rules that stop a member earlier.

    ``fit(..., steps=Until(5000, TargetLoss(0.1)))`` ends a member at the first rule that is met.

    Attributes:
        steps: Largest number of updates, at least 1.
        rules: Stop rules, such as :class:`TargetLoss`, :class:`Plateau` and :class:`Divergence`.
    """

    steps: int
    rules: tuple[AbstractRule, ...]

    def __init__(self, steps: int, *rules: AbstractRule) -> None:
        if isinstance(steps, AbstractRule | type | list | tuple):
            hint = "put the largest number of steps before the rules: Until(5000, TargetLoss(0.1))"
            raise expected("steps", "an integer of at least 1", kind_of(steps), hint)
        require_integer("steps", steps)
        for rule in rules:
            if not isinstance(rule, AbstractRule):
                missing_call = isinstance(rule, type) and issubclass(rule, AbstractRule)
                hint = f"{rule.__name__}({'0.1' if rule is TargetLoss else ''}) is one" if missing_call else ""
                raise expected("rules", "stop rules, such as TargetLoss(0.1)", kind_of(rule), hint)
        object.__setattr__(self, "steps", int(steps))
        object.__setattr__(self, "rules", rules)
