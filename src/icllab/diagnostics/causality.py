r"""Test that a prediction is deterministic and depends neither on its own target nor on later entries.

The entries that a prediction at position i must not see are exchanged for those of another prompt:

.. math:: \Delta_{ij} = T_j(\text{prompt with another target at } i, \text{ other entries after}) - T_j(\text{prompt}),
          \quad j \le i

Equal bits are causal. Another change is dependence or rounding: a sum over all examples minus that over the later ones
is causal, but not to the last bit. In float64, where the predictor runs in it, rounding is 1e9 times smaller and
dependence is as large. And dependence repeats, while rounding does not: all numbers of both prompts and of the
predictor are moved by some units in the last place, several times. A dependence changes by as little as they do, and
rounding by its own size.

Derived: docs/howto-network.md, What a predictor may see.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal, jaxprs_in_params
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import InputError, expected
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, answer_single, declared

_LISTED, _LARGEST = 5, 20  # positions in a message, and positions of the test
_UNITS, _COARSEST = 64, 2.0**-6  # size of a nudge in units in the last place, and its largest relative size
_NUDGES, _FEWEST = 8, 8  # number of nudges, and units in the last place that need none
_REMAINDER = 1e-3  # of a change, in float64, if it is no rounding
_BATCHING = 2.0**-10  # relative difference of batched answers from single ones that is rounding in float32


class Examination(NamedTuple):
    """Result of a test on prompts with exchanged entries."""

    repeats: bool  # whether equal prompts have equal answers
    positions: list[int]  # at which a prediction depends on what it must not see

    @property
    def complaint(self) -> str:
        """A predicate of a predictor that is random or looks ahead; empty for another."""
        if not self.repeats:
            return "gives two answers to the same prompt: it draws random numbers or keeps a state"
        if not self.positions:
            return ""
        listing = ", ".join(map(str, self.positions[:_LISTED])) + (", ..." if len(self.positions) > _LISTED else "")
        return f"looks at its own target or at later entries (at positions {listing})"


def forbidden_positions(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> list[int]:
    """Positions at which a prediction changes if the target there, or later entries, are exchanged.

    The test exchanges after every position of a prompt of at most 20, and after 20 positions of a longer one, including
    the first and the last.
    """
    return examine(predictor, task, key=key).positions


def examine(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray, name: str = "predictor") -> Examination:
    """Call a predictor on two prompts and on exchanges of their entries; ``name`` is its name in errors.

    Raises:
        InputError: The answer has another shape than the declarations of the predictor say, or the task cannot judge
            it; or answers to stacked prompts are not those to each prompt.
    """
    of_prompt, of_other = jax.random.split(jax.random.clone(key))  # the measurement uses the key too
    prompt, replacement = task.sample(key=of_prompt), task.sample(key=of_other)
    last = prompt.positions - 1
    answers_all = declared(predictor, "positions") == "every"
    positions = sorted({round(i) for i in np.linspace(0, last, min(last + 1, _LARGEST))}) if answers_all else [last]
    prompts = _exchanged(prompt, replacement, tuple(positions))
    answers, traits = _answers(predictor, prompts, name)
    _require_shape(jax.ShapeDtypeStruct(answers.shape[1:], answers.dtype), predictor, task, prompt, name)

    resolution = _resolution(answers) if traits is None else traits.resolution
    floor = _floor(answers, resolution, movable=any(map(_is_real, jax.tree.leaves((predictor, prompt)))))
    if _exceeding(answers[:1], answers[[1, -1]], floor).any() or not (traits is None or traits.repeats):
        return Examination(False, [])
    if declared(predictor, "batched"):
        stack = prompts if declared(predictor, "traceable") else jax.tree.map(lambda leaf: leaf[:1], prompts)
        first, again = (_stacked_answers(predictor, stack, name)[:1] for _ in range(2))
        if _exceeding(first, again, floor).any():
            return Examination(False, [])
        if _exceeding(answers[:1], first, max(_BATCHING, _UNITS / 4 * resolution)).any():
            hint = "batched = True says that prompts do not mix"
            raise expected(name, "the same answer to a prompt alone and in a stack", "another", hint)

    # A predictor of the last position has one answer, whatever the position.
    is_past = np.arange(answers.shape[1])[None] <= (np.asarray(positions)[:, None] if answers_all else 0)
    suspects = _exceeding(answers[:1], answers[2:-1], floor) & is_past
    if suspects.any():
        exchange = _Exchange(predictor, prompt, replacement, tuple(positions))
        suspects &= exchange.dependence(answers, resolution, is_past)
    answered = np.flatnonzero(suspects.any(0)).tolist()
    return Examination(True, answered if answers_all else [last] * bool(answered))


class _Exchange(NamedTuple):
    """A predictor, and two prompts whose entries are exchanged after each position."""

    predictor: Predictor
    prompt: Prompt
    replacement: Prompt
    positions: tuple[int, ...]

    def answers(self) -> tuple[np.ndarray, "_Traits | None"]:
        """Answers to the prompt, twice, to its exchanges, and to the prompt."""
        return _answers(self.predictor, _exchanged(self.prompt, self.replacement, self.positions))

    def dependence(self, answers: np.ndarray, resolution: float, is_past: np.ndarray) -> np.ndarray:
        """Mask [exchange, position] of answers that depend on the exchange."""
        changes = _differences(answers[:1], answers[2:-1])
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            wide_answers, traits = self._answers_in_float64()
            if traits is not None and traits.resolution < resolution:
                exceeding = _exceeding(wide_answers[:1], wide_answers[2:-1], _floor(wide_answers, traits.resolution))
                return exceeding & self._in_float64().repetition(wide_answers, traits.resolution, is_past)
        if wide_answers.shape != answers.shape:
            return self.repetition(answers, resolution, is_past)
        # A function on the host may leave float64 on its way: a smaller change is rounding, the same is not known.
        remains = _largest(_differences(wide_answers[:1], wide_answers[2:-1])) > _REMAINDER * _largest(changes)
        return remains & self.repetition(answers, resolution, is_past)

    def repetition(self, answers: np.ndarray, resolution: float, is_past: np.ndarray) -> np.ndarray:
        """Mask [exchange, position] of changes that persist when all numbers are nudged."""
        changes, size = _differences(answers[:1], answers[2:-1]), min(_UNITS * resolution, _COARSEST)
        if not any(map(_is_real, jax.tree.leaves((self.predictor, self.prompt)))):
            return np.ones(is_past.shape, bool)
        rng = np.random.default_rng(0)

        def factors(values: Any) -> Any:
            return jax.tree.map(
                lambda leaf: 1 + size * rng.uniform(-1, 1, jnp.shape(leaf) if _is_real(leaf) else ()), values
            )

        def moved(values: Any, factors: Any) -> Any:
            return jax.tree.map(
                lambda leaf, f: leaf * jnp.asarray(f, leaf.dtype) if _is_real(leaf) else leaf, values, factors
            )

        noise = np.zeros(changes.shape[:2])
        for _ in range(_NUDGES):
            common = factors(self.prompt)  # of both prompts, so that their difference moves as little
            prompt, replacement = moved(self.prompt, common), moved(self.replacement, common)
            predictor = moved(self.predictor, factors(self.predictor))
            nudged, _ = _Exchange(predictor, prompt, replacement, self.positions).answers()
            noise = np.maximum(noise, _largest(_differences(changes, _differences(nudged[:1], nudged[2:-1]))))
        return _largest(changes) > 2 * np.where(is_past, noise, 0).max(0)

    def _in_float64(self) -> "_Exchange":
        predictor, prompt, replacement = jax.tree.map(
            lambda leaf: leaf.astype(float) if _is_real(leaf) else leaf, tuple(self[:3])
        )
        return _Exchange(predictor, prompt, replacement, self.positions)

    def _answers_in_float64(self) -> tuple[np.ndarray, "_Traits | None"]:
        """Answers to prompts in float64; none if the predictor cannot take them, as a network of float32 weights."""
        try:
            return self._in_float64().answers()
        except Exception:
            return np.zeros(0), None


class _Traits(NamedTuple):
    """Facts that the program of a predictor states."""

    resolution: float  # relative spacing of its coarsest numbers
    repeats: bool  # whether two programs have equal constants


@eqx.filter_jit
def _exchanged(prompt: Prompt, replacement: Prompt, positions: tuple[int, ...]) -> Prompt:
    """The prompt twice, with entries exchanged after each position, and again the prompt."""
    prompts = [prompt, prompt, *(prompt.replaced_after(position, replacement) for position in positions), prompt]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *prompts)


def _answers(predictor: Predictor, prompts: Prompt, name: str = "predictor") -> tuple[np.ndarray, _Traits | None]:
    """Answers to stacked prompts, and traits of a predictor that can be traced."""
    if declared(predictor, "traceable"):
        answers, traits = _compiled_answers(predictor, prompts)
        return np.asarray(answers), traits
    if declared(predictor, "batched"):
        return _stacked_answers(predictor, prompts, name), None
    count = len(jax.tree.leaves(prompts)[0])
    singles = [jax.tree.map(lambda leaf, i=i: leaf[i], prompts) for i in range(count)]
    return np.stack([np.asarray(predictor(prompt)) for prompt in singles]), None


def _stacked_answers(predictor: Predictor, prompts: Prompt, name: str) -> np.ndarray:
    """Answers of a ``batched`` predictor."""
    count = len(jax.tree.leaves(prompts)[0])
    answers = np.asarray(predictor(prompts))
    if answers.shape[:1] != (count,):
        hint = "batched = True says that it takes stacked prompts, and answers each"
        raise expected(name, f"{count} stacked answers to {count} prompts", answers.shape, hint)
    return answers


@eqx.filter_jit
def _compiled_answers(predictor: Predictor, prompts: Prompt) -> tuple[Array, _Traits]:
    """Answers to all prompts by one program, prompt by prompt, so that equal prompts give equal bits."""
    first = jax.tree.map(lambda leaf: leaf[0], prompts)
    programs = [jax.make_jaxpr(lambda prompt: _array(answer_single(predictor, prompt)))(first) for _ in range(2)]
    constants, repetition = (_constants(program) for program in programs)
    repeats = len(constants) == len(repetition) and all(map(_equal, constants, repetition))
    types = {v.aval.dtype for equation in _equations(programs[0].jaxpr) for v in equation.outvars}
    types |= {aval.dtype for aval in programs[0].out_avals}
    resolution = max((float(jnp.finfo(d).eps) for d in types if jnp.issubdtype(d, jnp.floating)), default=0.0)
    return jax.lax.map(lambda prompt: _array(answer_single(predictor, prompt)), prompts), _Traits(resolution, repeats)


def _is_real(leaf: Any) -> bool:
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _array(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        raise TypeError(f"a {type(answer).__name__}, where an array is expected")
    return answer


def _equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for part in jaxprs_in_params(equation.params):
            yield from _equations(part)


def _constants(program: Any) -> list[Any]:
    literals = [v.val for e in _equations(program.jaxpr) for v in e.invars if isinstance(v, Literal)]
    return [*program.consts, *literals]


def _equal(left: Any, right: Any) -> bool:
    if left is right or isinstance(left, Tracer):
        return True
    if jnp.issubdtype(left.dtype, jax.dtypes.extended) if hasattr(left, "dtype") else False:
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    return np.array_equal(np.asarray(left), np.asarray(right), equal_nan=np.asarray(left).dtype.kind == "f")


def _resolution(answers: np.ndarray) -> float:
    """Relative spacing of the coarsest numbers that have all these answers; integers say nothing of it."""
    finite = np.asarray(answers, np.float64)[np.isfinite(np.asarray(answers, np.float64))]
    spacing = float(jnp.finfo(answers.dtype).eps) if jnp.issubdtype(answers.dtype, jnp.floating) else 0.0
    if np.array_equal(finite, np.round(finite)):
        return spacing
    for kind in (jnp.bfloat16, jnp.float16, jnp.float32):
        with np.errstate(over="ignore"):
            if np.array_equal(finite, finite.astype(kind).astype(np.float64)):
                return max(spacing, float(jnp.finfo(kind).eps))
    return spacing


def _differences(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``right - left``; 0 for equal values (also two NaNs), infinite if one value is NaN."""
    left, right = np.broadcast_arrays(np.asarray(left, np.float64), np.asarray(right, np.float64))
    is_equal = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        difference = np.where(is_equal, 0.0, right - left)
    return np.where(np.isnan(difference), np.inf, difference)


def _largest(values: np.ndarray) -> np.ndarray:
    """Largest absolute value of each position."""
    return np.abs(values).reshape(*values.shape[:2], -1).max(-1)


def _exceeding(left: np.ndarray, right: np.ndarray, floor: float) -> np.ndarray:
    """Mask [prompt, position] of answers that differ by more than ``floor``, relative to the values that differ."""
    pairs = zip(*np.broadcast_arrays(left[:, None], right[:, None]), strict=True)  # one at a time: they may be large
    return np.concatenate([_pair_exceeding(a, b, floor) for a, b in pairs])


def _pair_exceeding(left: np.ndarray, right: np.ndarray, floor: float) -> np.ndarray:
    difference = _differences(left, right)
    sizes = np.maximum(np.abs(np.asarray(left, np.float64)), np.abs(np.asarray(right, np.float64)))
    scale = np.where((difference != 0) & np.isfinite(sizes), sizes, 0.0)
    return _largest(difference) > floor * _largest(scale)


def _floor(answers: np.ndarray, resolution: float, *, movable: bool = True) -> float:
    """Relative change of answers that is rounding without further tests; there are none unless numbers are nudged."""
    units = _FEWEST if movable else _UNITS
    return min(units * resolution, _COARSEST) if jnp.issubdtype(answers.dtype, jnp.floating) else 0.0


def _require_shape(
    answer: jax.ShapeDtypeStruct, predictor: Predictor, task: AbstractTask, prompt: Prompt, name: str
) -> None:
    """Raise unless an answer has the declared positions, and a shape that the task can judge."""
    try:
        eqx.filter_eval_shape(task.loss, answer, prompt)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    positions = declared(predictor, "positions")
    wish = (prompt.positions if positions == "every" else 1, *answer.shape[1:])
    if answer.shape != wish:
        alternative = (
            "'every' is for every position" if positions == "last" else "'last', an attribute, is for the last alone"
        )
        raise expected(name, str(wish), answer.shape, f"it declares positions = {positions!r}, and {alternative}")
