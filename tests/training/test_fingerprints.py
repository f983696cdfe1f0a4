"""Two predictors are told apart by what they compute, not by who made them; options say in words what differs."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.predictors import prompts

from icllab.core.prompt import Prompt, RegressionPrompt, TokenPrompt
from icllab.models import BlockOptions, Interleaved, Transformer
from icllab.training.fingerprints import answers_alike, function_of, functions, jaxpr_digest, options

PROMPT = jax.tree.map(lambda leaf: leaf[0], prompts(1))


class Bent(eqx.Module):
    """The query times a vector, through any function."""

    w: jax.Array
    bend: object = eqx.field(static=True)
    factor: float = 1.0

    def __call__(self, prompt):
        return self.factor * self.bend(prompt.x @ self.w)


def bent(bend, factor=1.0, w=0.0):
    return Bent(np.full(3, w, np.float32), bend, factor)


def test_a_function_made_anew_is_the_same_one():
    def made(slope):
        return lambda z: jnp.maximum(z, slope * z)

    known = function_of(bent(made(0.1)), PROMPT)
    assert answers_alike(known, bent(made(0.1), w=5.0)) is True  # numbers of arrays do not matter
    assert answers_alike(known, bent(made(0.2))) is False
    assert answers_alike(known, bent(made(0.1), factor=2.0)) is False
    assert answers_alike(known, lambda prompt: prompt.nothing) is False  # whatever it raises


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit, jax.checkpoint, lambda f: jax.jit(jax.jit(f))])
def test_constants_that_are_closed_over_count_however_deep(inside):
    def known(numbers):
        return jaxpr_digest(lambda z: inside(lambda z: z * np.asarray(numbers, np.float32))(z), jnp.zeros(3))

    assert known([1.0, 2.0, 3.0]) == known([1.0, 2.0, 3.0])
    assert known([1.0, 2.0, 3.0]) != known([1.0, 2.0, 4.0])


def test_a_key_that_is_closed_over_counts():
    def known(seed):
        key = jax.random.key(seed)
        return jaxpr_digest(lambda z: z + jax.random.normal(key, (3,)), jnp.zeros(3))

    assert known(0) == known(0) != known(1)


def test_settings_of_the_process_are_no_part_of_a_function():
    """The program as it is written out depends on each of them."""

    def bend(z):
        return jax.nn.relu(jnp.outer(z, z) @ z) + jnp.arange(5.0)

    known = function_of(bent(bend), PROMPT)
    for setting in (jax.default_matmul_precision("highest"), jax.disable_jit(), jax.enable_x64(True)):
        with setting:
            assert answers_alike(known, bent(bend)) is True
    with jax.enable_x64(True):
        assert answers_alike(function_of(bent(bend), PROMPT), bent(bend)) is True


def test_another_process_says_the_same():
    """Addresses of functions and the order of sets differ between processes."""
    text = (
        "from training.test_fingerprints import *\n"
        "print(function_of(transformer(lambda q, k: -jnp.sum((q - k) ** 2)), PROMPT)['digest'])"
    )
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    output = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=True)
    assert output.stdout.strip() == function_of(transformer(lambda q, k: -jnp.sum((q - k) ** 2)), PROMPT)["digest"]


def transformer(similarity):
    block = BlockOptions(heads=1, mlp=None, norm="none", similarity=similarity)
    return Transformer(
        Interleaved(), dim=3, width=4, layers=1, block=block, positions="none", length=4, key=jax.random.key(0)
    )


class Counted(TokenPrompt):
    """A prompt with a static field; its mask is absent."""

    size: int = eqx.field(static=True, kw_only=True)


def test_prompts_of_any_class_and_type_are_described():
    class Sums(eqx.Module):
        w: jax.Array

        def __call__(self, prompt):
            return self.w * (prompt.tokens[1:] + prompt.size)

    known = function_of(Sums(jnp.ones(4)), Counted(jnp.arange(5), size=7))
    assert answers_alike(known, Sums(jnp.zeros(4))) is True
    other = {**known, "prompt": {**known["prompt"], "class": "Unknown"}}
    assert answers_alike(other, Sums(jnp.zeros(4))) is None  # no such class is imported: nobody can tell

    class Listed(Prompt):
        parts: list

        positions = 1
        replaced_after = alone = None

    assert function_of(Sums(jnp.ones(4)), Listed([1]))["digest"] is None
    half = RegressionPrompt(*(leaf.astype(jnp.bfloat16) for leaf in jax.tree.leaves(PROMPT)))
    known = function_of(bent(jnp.tanh), half)
    assert known["prompt"]["fields"]["y"] == {"shape": [5], "dtype": "bfloat16"}
    assert answers_alike(known, bent(jnp.tanh)) is True


def test_options_are_everything_but_arrays():
    class Options(eqx.Module):
        bent: Bent
        names: tuple
        parts: dict
        kinds: frozenset = eqx.field(static=True)
        thing: object = eqx.field(static=True)

    tree = Options(bent(jnp.tanh), ("a", 1), {"w": jnp.ones(2), "n": None}, frozenset("hgfedcba"), object())
    known = options(tree)
    name = "test_options_are_everything_but_arrays.<locals>.Options"
    assert known == {
        "predictor": name,
        "bent": "Bent",
        "bent.bend": "function tanh",
        "bent.factor": "1.0",
        "names": "('a', 1)",
        "parts.n": None,
        "kinds": str([repr(letter) for letter in "abcdefgh"]),
        "thing": "<object object>",
    }
    assert functions(known) == ["bent.bend"]
    assert options(lambda prompt: prompt.y)["predictor"].endswith("<lambda>")
