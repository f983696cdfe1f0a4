"""What cannot be trained is refused in one line, before anything is compiled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from training.predictors import Slope, prompts, task

import icllab as icl
from icllab.core.errors import InputError
from icllab.training import Fixed, Record


class Wide(Slope):
    def __call__(self, prompt):
        return jnp.zeros((prompt.positions + 2,))


class Bare(eqx.Module):
    def __call__(self, prompt):
        return prompt.y


class Matrix(Slope):
    def __call__(self, prompt):
        return jnp.zeros((prompt.positions, 3)) * self.w[None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1, got 0"),
        ({"record": [-1, 2]}, "record: expected steps >= 0, got [-1, 2]"),
        ({"store": ""}, "store: expected a directory, got ''"),
        ({"batch": 0}, "batch: expected an integer of at least 1, or None"),
        ({"batch": None}, "batch: expected an integer: prompts drawn afresh have no whole set, got None; give data="),
        ({"data": 0}, "data: expected at least one prompt, got 0"),
        ({"data": prompts(0)}, "data: expected at least one prompt, got 0"),
        (
            {"predictor": Wide(jnp.zeros(3))},
            "predictor: expected a prediction with 5 positions, or 1 for the last, got",
        ),
        (
            {"predictor": Matrix(jnp.zeros(3))},
            "predictor: expected a prediction that task.loss can judge, got 'float32[5, 3]'",
        ),
        ({"predictor": 3}, "predictor: expected a function of a prompt, or an ensemble of them, got 'int'"),
        ({"predictor": Bare()}, "predictor: expected floating-point arrays to train, got 'Bare'"),
        ({"optimizer": optax.adam}, "optimizer: expected an optax optimiser, or a factory that is swept"),
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
            "held_out: expected prompts of the shapes that are trained on, [[5, 3], [5]], got [[7, 3], [7]]",
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
