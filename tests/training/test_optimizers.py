"""Equal optimisers are one program; optimisers that differ in anything are two."""

import functools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.training.optimizers import Optimizer, comparable

RATE = 0.1


def chain(rate, clip, boundary):
    schedule = optax.join_schedules([optax.constant_schedule(rate), optax.linear_schedule(rate, 0.0, 9)], [boundary])
    return optax.chain(
        optax.clip_by_global_norm(clip), optax.chain(optax.adam(schedule), optax.add_decayed_weights(rate))
    )


def injected(rate, decay):
    schedule = optax.piecewise_constant_schedule(rate, {10: decay})
    return optax.inject_hyperparams(optax.adamw)(learning_rate=schedule, weight_decay=decay)


def arrays(scale, size):
    weights = jnp.full(3, scale)
    return optax.chain(optax.stateless(lambda updates, _: {"w": updates["w"] * weights}), optax.sgd(size))


BUILDERS = {
    "adam": (lambda rate, b1: optax.adam(rate, b1=b1), (0.01, 0.7)),
    "adamw": (lambda decay, eps: optax.adamw(0.1, weight_decay=decay, eps=eps), (0.1, 1e-6)),
    "chain": (chain, (0.1, 1.0, 5)),
    "injected": (injected, (0.1, 0.5)),
    "mask of a function": (
        lambda first, decay: optax.adamw(0.1, weight_decay=decay, mask=lambda _: {"w": first}),
        (0, 0.1),
    ),
    "mask of a tree": (lambda first, rate: optax.masked(optax.sgd(rate), {"w": first, "b": [0, 1]}), (0, 0.1)),
    "schedule of the user": (lambda a, b: optax.sgd(lambda count: a / (b + count)), (1.0, 2.0)),
    "method": (lambda rate, every: optax.MultiSteps(optax.sgd(rate), every).gradient_transformation(), (0.1, 2)),
    "partial": (lambda decay, b2: functools.partial(optax.adamw, weight_decay=decay, b2=b2), (0.1, 0.9)),
    "partition": (lambda a, b: optax.partition({"x": optax.sgd(a), "y": optax.adam(b)}, {"w": "x"}), (0.1, 0.2)),
    "random key": (lambda eta, gamma: optax.add_noise(eta, gamma, jax.random.key(3)), (0.1, 0.5)),
    "jax array": (arrays, (0.5, 0.1)),
    "numpy array": (lambda a, b: optax.trace(np.array([a, b])), (0.5, 0.6)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_optimizers_are_equal_exactly_if_their_numbers_are(name):
    """One number at a time is moved by a random factor, by one unit of rounding, and to another type."""
    build, numbers = BUILDERS[name]
    first = comparable(build(*numbers))
    again = comparable(build(*numbers))
    assert isinstance(first, Optimizer)
    assert first == again
    assert hash(first) == hash(again)
    generator = np.random.default_rng()
    for i, number in enumerate(numbers):
        for other in (number + int(generator.integers(1, 9)), np.nextafter(number, 9.0).item(), number + 0.5):
            changed = comparable(build(*numbers[:i], other, *numbers[i + 1 :]))
            if name != "jax array" or np.float32(other) != np.float32(number):
                assert changed != first, (name, number, other)


def test_what_cannot_be_compared_is_equal_to_itself_alone():
    def of_a_global(count):
        return RATE / (1 + count)

    class Rate:
        def __call__(self, count):
            return RATE

    def inside(count):
        return (lambda: RATE)() / (1 + count)

    for schedule in (of_a_global, inside, Rate(), jax.jit(of_a_global), jax.vmap(of_a_global)):
        optimizer = optax.chain(optax.adam(schedule))
        assert comparable(optimizer) is optimizer


@pytest.mark.parametrize("value", [0.0, 1, "a", None])
def test_values_of_other_types_differ(value):
    """Python finds 0.0 and -0.0, 1 and True equal."""
    others = {0.0: (-0.0, 0, False, np.float32(0)), 1: (1.0, True, np.int64(1)), "a": (b"a", ["a"]), None: (0, ())}
    make = lambda x: comparable(optax.masked(optax.sgd(0.1), {"w": x}))  # noqa: E731
    assert make(value) == make(value)
    assert all(make(value) != make(other) for other in others[value])
    assert make({"a": value}) != make({"b": value}) != make([value]) != make((value,))


def test_a_changed_closure_is_another_program():
    mask = {"w": True}
    optimizer = optax.masked(optax.sgd(0.1), mask)
    before = comparable(optimizer)
    mask["w"] = False
    assert comparable(optimizer) != before == comparable(optax.masked(optax.sgd(0.1), {"w": True}))


def test_arrays_are_compared_by_value_type_and_shape():
    make = lambda x: comparable(optax.sgd(x))  # noqa: E731
    values = [jnp.ones(2), jnp.ones(2, jnp.int32), jnp.ones((2, 1)), np.ones(2, np.float32), jnp.array([1.0, 2.0])]
    assert [i == j for i in range(5) for j in range(5)] == [make(x) == make(y) for x in values for y in values]


def test_equal_optimizers_are_compiled_once_and_train_to_the_same_bits():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )

    def trained(optimizer):
        before = len(compiled)
        start = slope(key=jax.random.key(5))
        run = icl.fit(start, task(), steps=4, key=jax.random.key(0), data=prompts(6), batch=6, optimizer=optimizer)
        return np.asarray(run.predictor.w), len(compiled) - before

    first, _ = trained(optax.adam(optax.linear_schedule(0.1, 0.0, 9)))
    again, programs = trained(optax.adam(optax.linear_schedule(0.1, 0.0, 9)))
    other, other_programs = trained(optax.adam(optax.linear_schedule(0.1, 0.0, 8)))
    assert programs == 0
    assert other_programs >= 1
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_run_compiles_its_step_and_little_else():
    """One program draws the keys, one makes the state, one is the step: of new shapes, so that none is kept."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    start, data = slope(key=jax.random.key(5), dim=7), prompts(5, dim=7)
    before = len(compiled)
    run = icl.fit(start, task(dim=7), steps=3, key=jax.random.key(0), data=data, batch=5)
    assert run.predictor.w.shape == (7,)
    assert len(compiled) - before <= 3
