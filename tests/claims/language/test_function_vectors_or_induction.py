"""What is particular to this claim: what it calls a mean at the query, and its check on made-up rises of losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.language import _heads
from icllab.claims.language.function_vectors_or_induction import claim, measure
from icllab.lab.checks import Outcome
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.tasks.few_shot import FewShotPrompt

BLOCK = BlockOptions(heads=4, mlp=None, norm="pre")
MODEL = Transformer(Tokens(7), dim=7, width=8, layers=2, block=BLOCK, positions="rotary", key=jax.random.key(0))
TOKENS = np.array([[1, 2, 3, 4, 0, 0], [2, 3, 4, 5, 6, 1]])
LENGTHS, ANSWERS = np.array([4, 6]), np.array([3, 4])  # the last token of the second answer stands after another


def prompts():
    at = np.arange(6)
    mask = at < LENGTHS[:, None]
    return jax.vmap(FewShotPrompt)(
        jnp.asarray(TOKENS), jnp.asarray(mask), jnp.asarray(mask & (at >= ANSWERS[:, None]))
    )


def test_means_are_over_real_tokens_or_the_last_before_the_answer():
    outputs = jax.jit(jax.vmap(lambda prompt: MODEL.trace(prompt).activations["block1.attention.heads"]))(prompts())
    outputs = np.asarray(outputs, float)
    real = np.concatenate([outputs[0, :3], outputs[1, :5]])
    np.testing.assert_allclose(_heads.mean_outputs(MODEL, prompts())[1], real.mean(0), rtol=1e-4, atol=1e-6)
    at_query = (outputs[0, 2] + outputs[1, 3]) / 2
    result = _heads.mean_outputs(MODEL, prompts(), measure._at_query)[1]
    np.testing.assert_allclose(result, at_query, rtol=1e-4, atol=1e-6)


RISES = {"few-shot": (0.5, 0.2, 0.1, 0.1), "repeated": (0.5, 6.0, 0.4, 0.5)}


def made_up(**changes):
    """Rises of the losses [task, set], with one of them changed."""
    rises = {task: dict(zip(claim.SETS, row, strict=True)) for task, row in RISES.items()}
    for task, change in changes.items():
        rises[task.replace("_", "-")] |= change
    table = np.array([[rises[task][name] for task in claim.TASKS] for name in claim.SETS])
    noise = 0.01 * np.random.default_rng(0).normal(size=(6, *table.shape))
    coords = {"head_set": list(claim.SETS), "task": list(claim.TASKS)}
    return xr.Dataset({"loss_rise": (("seed", "head_set", "task"), table + noise)}, coords=coords)


_, failing, outcome = judged(claim.check)
VECTOR, INDUCTION, BESIDE_VECTOR, BESIDE_INDUCTION = claim.SETS
