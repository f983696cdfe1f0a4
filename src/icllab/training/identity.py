"""What a run is, in a few lines of JSON: two runs with the same one have the same bits, step by step."""

import hashlib
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.training.loop import State
from icllab.training.plans import Plan


def configuration(plan: Plan, state: State) -> dict[str, Any]:
    """What a store is checked against before anything is read from it. ``steps`` is no part: a run may be extended.

    ``program`` is a digest of one member's step as JAX writes it out. It knows what cannot be compared otherwise: the
    optimiser's closures, the predictor's static fields, the task's loss.
    """
    program = plan.program
    return {
        "batch": program.stream.batch,
        "prompts": program.stream.name,
        "positions": list(program.positions),
        "record": repr(plan.record.losses),
        "members": {name: np.asarray(values).tolist() for name, values in plan.members.coordinates.items()},
        "key": np.asarray(jax.random.key_data(plan.key)).tolist(),
        "generator": str(jax.random.key_impl(plan.key)),
        "predictor": digest((plan.params, plan.own.frozen)),
        "task": digest(program.task),
        "data": digest((program.data, plan.own.data)),
        "held_out": digest(plan.held_out),
        "stop": [type(rule).__name__ for rule in program.rules],
        "thresholds": digest(program.rules),
        "program": _program(plan, state),
    }


def digest(tree: Any) -> str:
    """Hash of all arrays of a tree: paths, types, shapes and bytes."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        value = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}".encode() + value.tobytes())
    return found.hexdigest()[:16]


def _program(plan: Plan, state: State) -> str:
    own, first = jax.tree.map(lambda leaf: leaf[0], (plan.own, state))

    def step(program: Any, own: Any, state: State) -> State:
        now = jnp.int32(0)
        return program.update(own, state, program.prompts_at(own, now), now)

    jaxpr, _, _ = eqx.filter_make_jaxpr(step)(plan.program, own, first)
    text = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+|id=\d+", "", str(jaxpr)).encode())
    for constant in jaxpr.consts:
        text.update(np.asarray(constant).tobytes())
    return text.hexdigest()[:16]
