r"""Does a predictor look at what it may not see: its own target, and whatever comes later?

A prediction at position i is causal if it is *exactly* the same when everything after its query is exchanged:

.. math:: T_j(\text{prompt}) = T_j(\text{prompt with another target at } i, \text{ other entries after}), \quad j \le i
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared

_SHOWN, _MOST = 5, 16


def forbidden_positions(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> list[int]:
    """Positions such that exchanging their target and all that follows changes a prediction up to there.

    All positions of a short prompt are tried, sixteen of a longer one, the first and the last among them.
    """
    of_prompt, of_other = jax.random.split(key)
    prompt, other = task.sample(key=of_prompt), task.sample(key=of_other)
    last = prompt.positions - 1
    every = declared(predictor, "positions") == "every"
    asked = sorted({round(i) for i in np.linspace(0, last, min(last + 1, _MOST))}) if every else [last]
    exchanged = _exchanged(prompt, other, tuple(asked))
    if declared(predictor, "traceable"):
        before, after = _answered(predictor, prompt, exchanged)
    else:
        before = predictor(prompt)
        after = [predictor(jax.tree.map(lambda leaf, i=i: leaf[i], exchanged)) for i in range(len(asked))]
    first, rest = np.asarray(before), [np.asarray(one) for one in after]
    if len(first) not in (1, prompt.positions):
        return []  # the task's loss refuses them
    # A predictor of the last position has one answer, whatever the position.
    until = [i + 1 if every else len(first) for i in asked]
    return [
        i
        for i, one, end in zip(asked, rest, until, strict=True)
        if not np.array_equal(first[:end], one[:end], equal_nan=True)
    ]


def looks_ahead(positions: list[int]) -> str:
    """What a predictor does at such positions, in words."""
    shown = ", ".join(map(str, positions[:_SHOWN])) + (", ..." if len(positions) > _SHOWN else "")
    return f"looks at its own target or at later entries (at positions {shown})"


@eqx.filter_jit
def _exchanged(prompt: Prompt, other: Prompt, positions: tuple[int, ...]) -> Prompt:
    changed = [prompt.replaced_after(position, other) for position in positions]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *changed)


@eqx.filter_jit
def _answered(predictor: Predictor, prompt: Prompt, exchanged: Prompt) -> tuple[Array, Array]:
    """The answers by one program, prompt by prompt: equal prompts have equal bits."""
    both = jax.tree.map(lambda one, many: jnp.concatenate([one[None], many]), prompt, exchanged)
    answers = jax.lax.map(lambda one: _array(predictor(one)), both)
    return answers[0], answers[1:]


def _array(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        raise TypeError(f"a {type(answer).__name__}, where an array is expected")
    return answer
