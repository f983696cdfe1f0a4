r"""A test whether a predictor looks at entries that it must not see: its own target, and all later entries.

A prediction at position i is causal if it stays *exactly* the same when everything after its query is exchanged:

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

_LISTED, _LARGEST = 5, 16


def forbidden_positions(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> list[int]:
    """Positions at which exchanging the target and all later entries changes a prediction up to that position.

    The test covers all positions of a short prompt, and sixteen of a longer one, including the first and the last.
    """
    of_prompt, of_other = jax.random.split(key)
    prompt, replacement = task.sample(key=of_prompt), task.sample(key=of_other)
    last = prompt.positions - 1
    answers_all = declared(predictor, "positions") == "every"
    positions = sorted({round(i) for i in np.linspace(0, last, min(last + 1, _LARGEST))}) if answers_all else [last]
    changed_prompts = _exchange(prompt, replacement, tuple(positions))
    if declared(predictor, "traceable"):
        before, after = _answer_both(predictor, prompt, changed_prompts)
    else:
        before = predictor(prompt)
        after = [predictor(jax.tree.map(lambda leaf, i=i: leaf[i], changed_prompts)) for i in range(len(positions))]
    reference, variants = np.asarray(before), [np.asarray(answer) for answer in after]
    if len(reference) not in (1, prompt.positions):
        return []  # the task's loss raises the error
    # A predictor of the last position has one answer, whatever the position.
    until = [i + 1 if answers_all else len(reference) for i in positions]
    return [
        i
        for i, answer, end in zip(positions, variants, until, strict=True)
        if not np.array_equal(reference[:end], answer[:end], equal_nan=True)
    ]


def describe_look_ahead(positions: list[int]) -> str:
    """Describe what a predictor does at forbidden positions."""
    listing = ", ".join(map(str, positions[:_LISTED])) + (", ..." if len(positions) > _LISTED else "")
    return f"looks at its own target or at later entries (at positions {listing})"


@eqx.filter_jit
def _exchange(prompt: Prompt, replacement: Prompt, positions: tuple[int, ...]) -> Prompt:
    prompts = [prompt.replaced_after(position, replacement) for position in positions]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *prompts)


@eqx.filter_jit
def _answer_both(predictor: Predictor, prompt: Prompt, variants: Prompt) -> tuple[Array, Array]:
    """Answers to all prompts by one program, prompt by prompt, so that equal prompts give equal bits."""
    prompts = jax.tree.map(lambda item, many: jnp.concatenate([item[None], many]), prompt, variants)
    answers = jax.lax.map(lambda item: _array(predictor(item)), prompts)
    return answers[0], answers[1:]


def _array(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        raise TypeError(f"a {type(answer).__name__}, where an array is expected")
    return answer
