r"""When a member is done: rules on its loss, evaluated in the compiled loop, one member at a time.

A rule is data. Its numbers are leaves, so that another threshold compiles nothing. A rule looks at the loss of the
step's own prompts, which is noisy; ``memory`` steps of exponential averaging make it less so:

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
    if isinstance(value, bool) or not isinstance(value, Real | np.ndarray | jax.Array):
        raise expected(name, "a number > 0", value)
    number = jnp.asarray(value, float)
    if number.ndim != 0 or not bool(number > 0):
        raise expected(name, "a number > 0", value)
    return number


class AbstractRule(eqx.Module):
    """A rule has a state for each member, looks at one loss a step, and says whether that is the last."""

    outcome: ClassVar[int] = STOPPED

    @abc.abstractmethod
    def start(self, like: Array) -> Any:
        """The state before the first step, in the type of ``like``."""

    @abc.abstractmethod
    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """The state after a loss, and whether the member ends here."""


def _average(mean: Array, loss: Array, step: Array, memory: Array) -> Array:
    count = jnp.minimum((step + 1).astype(loss.dtype), memory.astype(loss.dtype))
    return mean + (loss - mean) / count


class TargetLoss(AbstractRule):
    """Stop once the averaged loss is at most ``value``."""

    value: Float[Array, ""] = eqx.field(converter=lambda v: _positive("value", v))
    memory: Float[Array, ""] = eqx.field(default=1.0, converter=lambda v: _positive("memory", v))

    def start(self, like: Array) -> Any:
        """The average so far."""
        return jnp.zeros((), like.dtype)

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Compare, once ``memory`` losses have been seen."""
        mean = _average(state, loss, step, self.memory)
        enough = (step + 1).astype(loss.dtype) >= self.memory.astype(loss.dtype)
        return mean, enough & (mean <= self.value.astype(loss.dtype))


class Divergence(AbstractRule):
    """Give up once the loss is more than ``factor`` times what it was at the first step.

    A loss that is not a number, or parameters that are not, end a member under any rules.
    """

    outcome: ClassVar[int] = DIVERGED
    factor: Float[Array, ""] = eqx.field(default=1e3, converter=lambda v: _positive("factor", v))

    def start(self, like: Array) -> Any:
        """The first loss."""
        return jnp.zeros((), like.dtype)

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Compare with the first."""
        first = jnp.where(step == 0, loss, state)
        return first, (first > 0) & (loss > self.factor.astype(loss.dtype) * first)


class Plateau(AbstractRule):
    """Stop once ``steps`` steps have lowered the averaged loss by less than the fraction ``improvement``."""

    steps: Float[Array, ""] = eqx.field(default=1000.0, converter=lambda v: _positive("steps", v))
    improvement: Float[Array, ""] = eqx.field(default=0.01, converter=lambda v: _positive("improvement", v))
    memory: Float[Array, ""] = eqx.field(default=100.0, converter=lambda v: _positive("memory", v))

    def start(self, like: Array) -> Any:
        """The average, the average that is to be improved on, and when that one was taken."""
        zero = jnp.zeros((), like.dtype)
        return zero, jnp.full((), jnp.inf, like.dtype), zero

    def look(self, state: Any, loss: Float[Array, ""], step: Int[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
        """Every ``steps`` steps, compare with the average ``steps`` before."""
        mean, anchor, since = state
        mean, now = _average(mean, loss, step, self.memory), (step + 1).astype(loss.dtype)
        due = now - since >= self.steps.astype(loss.dtype)
        bar = (1 - self.improvement.astype(loss.dtype)) * anchor
        ended = due & jnp.isfinite(anchor) & (mean > bar)
        return (mean, jnp.where(due, mean, anchor), jnp.where(due, now, since)), ended


@dataclass(frozen=True, init=False)
class Until:
    """How long to train: at most so many updates, and for each member no longer than its rules let it.

    ``fit(..., steps=Until(5000, TargetLoss(0.1)))`` ends a member at the first rule that is met.

    Attributes:
        steps: Updates at most, at least 1.
        rules: Stop rules, such as :class:`TargetLoss`, :class:`Plateau` and :class:`Divergence`.
    """

    steps: int
    rules: tuple[AbstractRule, ...]

    def __init__(self, steps: int, *rules: AbstractRule) -> None:
        if isinstance(steps, AbstractRule | type | list | tuple):
            hint = "a rule comes after the most steps: Until(5000, TargetLoss(0.1))"
            raise expected("steps", "an integer of at least 1", kind_of(steps), hint)
        require_integer("steps", steps)
        for rule in rules:
            if not isinstance(rule, AbstractRule):
                raise expected("rules", "stop rules, such as TargetLoss(0.1)", kind_of(rule), _with_numbers(rule))
        object.__setattr__(self, "steps", int(steps))
        object.__setattr__(self, "rules", rules)


def _with_numbers(rule: Any) -> str:
    """How a rule is made of its class."""
    if not (isinstance(rule, type) and issubclass(rule, AbstractRule)):
        return ""
    return f"{rule.__name__}({'0.1' if rule is TargetLoss else ''}) is one"
