"""What cannot be trained is refused in one line, before anything is compiled."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import Slope, Weighted, prompts, task

import icllab as icl
from icllab.core.errors import InputError
from icllab.tasks import FixedPrompts, LinearRegression, MarkovChain
from icllab.training import Fixed, Record
from icllab.training.plans import _mask
from icllab.training.streams import stream_of
from icllab.training.sweeps import require_effect


class Numeric(Slope):
    def __call__(self, prompt):
        return np.asarray(prompt.y) * np.asarray(self.w[0])


class Wide(Slope):
    def __call__(self, prompt):
        return jnp.zeros((prompt.positions + 2,))


class Bare(eqx.Module):
    def __call__(self, prompt):
        return prompt.y


class Matrix(Slope):
    def __call__(self, prompt):
        return jnp.zeros((prompt.positions, 3)) * self.w[None]


class Short(Slope):
    positions = "every"

    def __call__(self, prompt):
        return super().__call__(prompt)[-1:]


class Long(Slope):
    positions = "last"


ONE = jax.tree.map(lambda leaf: leaf[0], prompts(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1, got 0"),
        ({"record": [-1, 2]}, "record: expected steps >= 0, got [-1, 2]"),
        ({"store": ""}, "store: expected a directory, got ''"),
        ({"batch": 0}, "batch: expected an integer of at least 1, or None"),
        (
            {"batch": None},
            "batch: expected an integer, because fresh prompts are not a finite set, got None; give data=",
        ),
        ({"data": 0}, "data: expected at least one prompt, got 0"),
        ({"data": prompts(0)}, "data: expected at least one prompt, got 0"),
        (
            {"predictor": Wide(jnp.zeros(3))},
            "predictor: expected a prediction with 5 positions, or 1 for the last, got",
        ),
        (
            {"predictor": Short(jnp.zeros(3))},
            "predictor: expected a prediction with 5 positions, as it declares 'every', got [1]; fit calls it on one",
        ),
        (
            {"predictor": Long(jnp.zeros(3))},
            "predictor: expected a prediction with 1 position, as it declares 'last', got [5]; fit calls it on one",
        ),
        (
            {"predictor": Matrix(jnp.zeros(3))},
            "prediction: expected (5,), got (5, 3); answer every position, or the last",
        ),
        (
            {"predictor": Slope},
            "predictor: expected a function of a prompt, or an ensemble of such functions, got 'the class Slope'",
        ),
        ({"task": LinearRegression}, "task: expected a task, with methods sample and loss, got 'the class LinearRegre"),
        ({"task": "raventos"}, "task: expected a task, with methods sample and loss, got 'str'"),
        (
            {"predictor": Slope(jnp.zeros(4))},
            "predictor: expected a predictor for prompts of this task, got 'Slope, TypeError: ",
        ),
        (
            {"task": MarkovChain(np.full((2, 2), 0.5), tokens=6)},
            "predictor: expected a predictor for prompts of this task, got ",
        ),
        (
            {"predictor": Numeric(jnp.zeros(3))},
            "predictor: expected a predictor that JAX can trace, got 'Numeric, TracerArray",
        ),
        ({"data": ONE}, "data: expected prompts stacked on one leading axis, got [[5, 3], [5]]; try task.sample_many"),
        ({"predictor": 3}, "predictor: expected a function of a prompt, or an ensemble of such functions, got 'int'"),
        ({"predictor": Bare()}, "predictor: expected floating-point arrays to train, got 'Bare'"),
        ({"optimizer": optax.adam}, "optimizer: expected an optax optimiser, or a factory with swept arguments"),
        ({"sweep": {"optimizer.rate": [0.1]}}, "optimizer.rate: expected a factory of optimisers"),
        ({"optimizer": optax.sgd, "sweep": {"optimizer.rate": [0.1]}}, "unknown keyword of the optimizer 'rate'"),
        ({"sweep": {"rate": [0.1]}}, "sweep: expected names like 'optimizer.rate'"),
        ({"sweep": {"task.noise": [0.1]}}, "'noise'; did you mean 'noise_variance'?"),
        ({"sweep": {"task.length": [3, 4]}}, "task.length: expected a number that is a leaf, got 'int'; a shape"),
        ({"sweep": {"task.noise_variance": [0.1, float("nan")]}}, "expected a sequence of finite numbers to sweep"),
        ({"positions": "first"}, "positions: expected 'every', 'last' or integers, got 'first'"),
        ({"positions": [5]}, "positions: expected different integers from 0 to 4, got [5]"),
        ({"record": 0}, "record: expected a number of steps per factor of ten, 'every', or steps, got 0"),
        ({"record": Record(keep=[11])}, "keep: expected steps from 0 to 10, got [11]"),
        (
            {"record": Record(held_out=prompts(5, length=6))},
            "held_out: expected prompts of the same shapes as in training, [[5, 3], [5]], got [[7, 3], [7]]",
        ),
        (
            {"data": Fixed(9, "replacement")},
            "batch: expected an integer below 9, the size of the set, to draw with replacement, got 256",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(change, message):
    arguments = {"predictor": Slope(jnp.zeros(3)), "task": task(), "steps": 10, "key": jax.random.key(0)} | change
    with pytest.raises(InputError) as caught:
        icl.fit(arguments.pop("predictor"), arguments.pop("task"), **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [prompts(8), Fixed(prompts(8))])
def test_a_number_of_the_task_that_only_draws_prompts_is_not_swept_where_they_are_given(data):
    sweep = {"task.noise_variance": [0.01, 100.0]}
    with pytest.raises(InputError) as caught:
        icl.fit(Slope(jnp.zeros(3)), task(), steps=1, key=jax.random.key(0), data=data, sweep=sweep)
    assert str(caught.value) == (
        "task.noise_variance: expected a number that the loss of given prompts depends on, got 'a number that only "
        "draws them'; with data=16 every seed draws 16 prompts from its own task"
    )


def test_nor_is_one_of_a_task_whose_prompts_were_drawn_before():
    fixed = FixedPrompts(task(), prompts(8), 8.0)
    sweep = {"task.task.noise_variance": [0.01, 100.0]}
    message = "expected a number that prompts or loss depend on, got 'a number without effect'"
    with pytest.raises(InputError, match=message):
        icl.fit(Slope(jnp.zeros(3)), fixed, steps=1, key=jax.random.key(0), sweep=sweep)


@pytest.mark.parametrize(
    ("kind", "given", "drawn", "allowed"),
    [
        (LinearRegression, prompts(8), False, False),
        (Weighted, prompts(8), False, True),
        (LinearRegression, prompts(8), True, True),  # prompts of its own task, of which losses are recorded too
    ],
)
def test_a_number_that_loss_or_drawn_prompts_depend_on_has_an_effect(kind, given, drawn, allowed):
    one = jax.tree.map(lambda leaf: leaf[0], given)
    how = {"predictor": Slope(jnp.zeros(3)), "prompt": one, "key": jax.random.key(0), "draws": drawn}
    if allowed:
        require_effect(["task.noise_variance", "optimizer.rate"], task=task(kind=kind), **how)
        return
    with pytest.raises(InputError):
        require_effect(["task.noise_variance", "optimizer.rate"], task=task(kind=kind), **how)


@pytest.mark.parametrize("data", [np.ones((5, 3)), "prompts", 2.5, True])
def test_what_is_no_prompts_is_refused_where_no_type_checker_is_on(data):
    fixed = object.__new__(Fixed)
    object.__setattr__(fixed, "prompts", data)
    object.__setattr__(fixed, "minibatches", "epochs")
    with pytest.raises(InputError) as caught:
        inspect.unwrap(Fixed.__post_init__)(fixed)
    assert str(caught.value).startswith(
        f"data: expected prompts, or their number, got {type(data).__name__!r}; try task.sample"
    )


@pytest.mark.parametrize("name", ["data", "held_out"])
def test_prompts_whose_differences_are_rounded_away_are_refused(name):
    """Times since 1970 as targets: float32 holds every 128th second."""
    late = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) + 1.7e9, prompts(8))
    with pytest.raises(InputError, match=rf"^{name}.x: expected numbers whose differences float32 holds, got"):
        Record(held_out=late) if name == "held_out" else stream_of(Fixed(late), 4)


def test_parts_to_train_are_given_by_a_function():
    with pytest.raises(InputError, match=r"trainable: expected a function of the predictor, as in .*, got 'w'"):
        inspect.unwrap(_mask)(Slope(jnp.zeros(3)), "w")


def test_losses_after_the_last_step_are_warned_of():
    Record([0, 3]).require_within(3)
    with pytest.warns(UserWarning, match=r"record: expected steps from 0 to 3, got \[99\]; these are not recorded"):
        Record([0, 99]).require_within(3)
