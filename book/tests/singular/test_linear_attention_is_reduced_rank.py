"""What is particular to this claim: its check on made-up data, and that its prompts are drawn as it says."""

from types import SimpleNamespace

import jax
import numpy as np
import xarray as xr

from iclbook.claims.singular._linear_attention import all_prompts
from iclbook.claims.singular.linear_attention_is_reduced_rank import claim, measure
from icllab.lab.checks import Outcome

CELLS = (2, 2, 2)


def made_up(error=0.02, mismatch=1e-15, warned=0.0, **shift):
    """The closed forms, one standard error above; ``value``: instead of them."""
    dims = ("dim", "key_width", "task_rank")
    empty = xr.Dataset(
        coords={"dim": [3, 4], "key_width": [2, 3], "task_rank": [1, 2]},
        attrs={"configuration": '{"fixed": {"samples": 1e6}}'},
    )
    dataset = claim.theory(empty)
    value = dataset["learning_coefficient_theory"] + error
    return dataset.assign(
        learning_coefficient=value * shift.get("factor", 1.0),
        learning_coefficient_error=(dims, np.full(CELLS, error)),
        loss_mismatch=(dims, np.full(CELLS, mismatch)),
        sampler_warnings=(dims, np.full(CELLS, warned)),
    ).expand_dims(draws=[2000])


def failing(dataset):
    return {finding.id.split("[")[0] for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS}


def test_it_fails_where_a_number_is_off():
    assert failing(made_up(mismatch=1e-6)) == {"loss"}
    assert failing(made_up(mismatch=np.nan)) == {"loss"}
    assert failing(made_up(factor=1.08)) == {"coefficient"}
    assert failing(made_up(factor=2.0)) == {"coefficient", "half"}


def test_every_prompt_is_there_once_and_inputs_have_unit_covariance():
    """In tasks of rank 2: the task's covariance has rank 2, and the context's moments are invertible."""
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    x, y, context, task = all_prompts(2, np.sqrt(2) * directions[:2])
    assert len(x) == 3**3 * 2
    assert np.allclose(np.einsum("pi,pj->ij", x[:, -1], x[:, -1]) / len(x), np.eye(3))
    assert np.allclose(y, np.einsum("pid,pd->pi", x, task))
    assert np.allclose(sorted(np.linalg.eigvalsh(task.T @ task / len(x))), [0, 1, 1])
    assert np.linalg.eigvalsh(context.T @ context / len(x)).min() > 0.01
    different = {tuple(np.round(np.concatenate([a.ravel(), w]), 9)) for a, w in zip(x, task, strict=True)}
    assert len(different) == len(x)


def test_the_losses_are_one_where_no_head_answers_all_prompts(monkeypatch):
    """With tasks of rank 2, where the least loss is not zero; with one task a matrix of rank 1 answers all."""
    sampled = xr.Dataset({"estimate": 3.5, "mcse": 0.5, "rhat": 1.25}, attrs={"warnings": ["one"]})
    monkeypatch.setattr(measure, "coefficient_at_temperature", lambda *args, **how: sampled)
    sizes = {"dim": 3, "key_width": 2, "length": 2, "seed_of_law": 0, "samples": 1e6}
    point = SimpleNamespace(**sizes, task_rank=2, chains=4, warm_up=8, draws=8)
    with jax.enable_x64(True):
        found = measure.measure(point, key=jax.random.key(0))
    assert found["loss_mismatch"][1] < 1e-12
    names = ("learning_coefficient", "learning_coefficient_error", "sampler_rhat", "sampler_warnings")
    assert [found[name][1] for name in names] == [3.5, 0.5, 1.25, 1]
