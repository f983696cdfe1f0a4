"""What one of several devices does in a step, with the devices as an axis of ``vmap``."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.training import Fixed, Fresh, fitting
from icllab.training.loop import Program
from icllab.training.sharding import PART, _BatchPart, padded

PARTS = 4


class Planned(Exception):
    """What would be trained."""


@pytest.mark.parametrize("source", [Fresh(), Fresh(reuse=3), Fixed(prompts(40)), Fixed(prompts(16))], ids=str)
def test_parts_of_a_step_are_its_prompts_and_their_mean_gradient_its_gradient(source, monkeypatch):
    """Each device has a fourth of the prompts, in order; losses and gradient are then alike on all."""
    start = slope(key=jax.random.key(0))

    def stop(plan, **_):
        raise Planned(plan)

    monkeypatch.setattr(fitting, "train", stop)
    with pytest.raises(Planned) as planned:
        icl.fit(start, task(), steps=9, key=jax.random.key(1), batch=16, optimizer=optax.sgd(0.1), data=source)
    (plan,) = planned.value.args
    whole = plan.program
    divided = _BatchPart(**{name: getattr(whole, name) for name in Program.__dataclass_fields__}, parts=PARTS)
    own, params = jax.tree.map(lambda leaf: leaf[0], (plan.constants, plan.params))
    step = jnp.int32(4)

    def of(program):
        drawn = program.draw(own, program.begin(own, step), step)[0]
        return drawn, eqx.filter_value_and_grad(lambda p: jnp.mean(program.losses(own, p, drawn)))(params)

    drawn, (loss, gradient) = of(whole)
    parts, (losses, gradients) = jax.vmap(lambda _: of(divided), axis_name=PART)(jnp.arange(PARTS))
    assert parts.x.shape[:2] == (PARTS, 16 // PARTS)
    np.testing.assert_array_equal(parts.x.reshape(drawn.x.shape), drawn.x)
    np.testing.assert_array_equal(parts.y.reshape(drawn.y.shape), drawn.y)
    np.testing.assert_allclose(losses, np.full(PARTS, loss), rtol=1e-5)
    np.testing.assert_allclose(gradients.w, np.tile(gradient.w, (PARTS, 1)), rtol=1e-4, atol=1e-6)


def test_arrays_of_several_types_have_their_own_mean_gradient(getkey):
    from icllab.training.sharding import _with_mean_gradient

    tree = {"a": jnp.ones((2, 3)), "b": jnp.ones(4, jnp.bfloat16), "c": jnp.ones(())}

    def gradient(scale):
        def loss(p):
            p = _with_mean_gradient(p)
            return scale * jnp.sum(p["a"] * 2) + jnp.sum(p["b"] * 3).astype(scale.dtype) * scale + 5 * scale * p["c"]

        return jax.grad(loss)(tree)

    found = jax.vmap(gradient, axis_name=PART)(jnp.arange(PARTS, dtype=float))
    for name, slope_ in (("a", 2), ("b", 3), ("c", 5)):
        assert found[name].dtype == tree[name].dtype
        np.testing.assert_array_equal(np.asarray(found[name], float), np.full(found[name].shape, 1.5 * slope_))


def test_the_last_member_is_there_again_until_parts_are_alike():
    tree = {"a": jnp.arange(5), "key": jax.random.split(jax.random.key(0), 5)}
    found = padded(tree, 4)
    assert found["a"].tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert found["key"].shape == (8,)
    assert padded(tree, 5) is tree
