"""The check on made-up curves whose transitions are known, and the prompts and the coefficient of the measurement."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

import icllab as icl
from iclbook.claims.language.induction_bump import claim, measure
from icllab.core.errors import InputError
from icllab.lab.checks import Outcome
from icllab.tasks import Text
from icllab.training import Record

STEPS = claim.STEPS
POINT = SimpleNamespace(
    width=8, heads=2, tokens=20, samples=8, nbeta=100.0, localization=10.0, warm_up=20, chain_batch=4
)


def results(*, benefit=1.0, score=0.6, bump=0.5, late=1.0, both=False, seeds=8):
    """Losses that fall as a logarithm, and with two layers once more by ``bump`` at 700 steps, where the head forms.

    The benefit of repetition rises ``late`` times later. ``both``: one layer does the same.
    """
    generator, step = np.random.default_rng(0), np.maximum(np.array(STEPS), 1.0)

    def rise(time, seed):
        return 1 / (1 + (time * (1 + 0.03 * seed) / step) ** 6)

    def curves(draw):
        noise = draw(len(step))
        head = np.stack([rise(700, seed) for seed in range(seeds)])
        text = np.stack([4 - 0.25 * np.log(step)] * seeds)
        two = {
            "repeated_loss": text - bump * head,
            "repeat_benefit": benefit * np.stack([rise(700 * late, seed) for seed in range(seeds)]),
            "prefix_matching_score": 0.05 + score * head,
        }
        one = {"repeated_loss": text, "repeat_benefit": 0 * head, "prefix_matching_score": 0.05 + 0 * head}
        return {name: np.stack([two[name] if both else one[name], two[name]]) + noise for name in two}

    values = curves(lambda size: 0.005 * generator.normal(size=(2, seeds, size)))
    dims = ("layers", "seed", "step")
    coords = {"layers": [1, 2], "seed": np.arange(seeds), "step": np.array(STEPS)}
    return xr.Dataset({name: (dims, value) for name, value in values.items()}, coords=coords)


_, failing, outcome = judged(claim.check)


def test_it_holds_where_the_head_the_benefit_and_the_bend_come_together():
    assert outcome(results()) is Outcome.HOLDS, [f for f in claim.check(results()) if f.outcome is not Outcome.HOLDS]


@pytest.mark.parametrize(
    ("change", "finding"),
    [({"score": 0.0}, "matching"), ({"benefit": 0.0}, "benefit"), ({"bump": 0.0}, "bump"), ({"late": 3.0}, "together")],
)
def test_each_finding_fails_where_its_curve_does(change, finding):
    assert finding in failing(results(**change))


def test_what_one_layer_has_too_is_not_of_the_second():
    assert set(failing(results(both=True))) == {"matching", "benefit", "bump"}


def test_times_of_a_half_and_the_rise_of_the_steepness_are_those_of_the_curves():
    part = results(seeds=1).sel(layers=2).isel(seed=0)
    assert float(claim.half_time(part["prefix_matching_score"])) == pytest.approx(700, rel=0.05)
    assert float(claim.half_time(-part["prefix_matching_score"])) == pytest.approx(700, rel=0.05)
    step = np.array([s for s in STEPS if s > 0])
    line = xr.DataArray(5 - 0.3 * np.log(step), {"step": step}, "step")
    assert float(claim.steepness_rise(line)) == pytest.approx(0, abs=1e-12)
    # a fall by h(1 + (T/t)^6)^-1, between two records at equal logarithmic distances from T
    logistic, distance = line - 0.5 / (1 + (700 / step) ** 6), np.log(400) / 28
    quotient = 0.5 * np.tanh(3 * distance) / (2 * distance)
    assert float(claim.steepness_rise(logistic)) == pytest.approx(quotient, rel=0.05)
    assert float(claim.steepness_rise(line + 1 / step)) < 1e-3  # a power law only becomes less steep


@pytest.fixture(scope="module")
def text():
    return Text.from_documents(measure.corpus(claim.TABLES), tokens=20, alphabet=measure.PRINTABLE)


def test_windows_repeat_with_a_period_of_a_quarter_to_a_half(text):
    task = measure.Rearranged.of(text, measure.repeating(0.5))
    windows = np.asarray(task.sample_many(200, key=jax.random.key(0)).tokens)
    periods = [[p for p in range(5, 10) if (w[p:] == w[:-p]).all()] for w in windows]
    assert 0.4 < np.mean([bool(p) for p in periods]) < 0.6
    assert set(np.concatenate([p[:1] for p in periods]).astype(int)) == set(range(5, 10))
    letters = np.asarray(measure.Rearranged.of(text, measure.letters).sample(key=jax.random.key(1)).tokens)
    assert len(set(letters[: measure.PERIOD])) == measure.PERIOD
    assert (letters[measure.PERIOD :] == letters[: -measure.PERIOD]).all()
    assert all(chr(measure.PRINTABLE[token]).islower() for token in letters)


def test_the_corpus_of_smoke_is_the_same_everywhere_and_is_split_by_file():
    documents = measure.corpus(claim.TABLES)
    assert documents.digest()[:13] == "1a7383ef32639"
    training, held_out = documents.split()
    assert not set(training.names) & set(held_out.names)


def test_the_coefficient_is_that_of_one_head_of_the_last_layer(text, monkeypatch):
    model, masks = measure.network_of(POINT, 2, key=jax.random.key(0)), []
    seen = lambda posterior, **options: masks.append(posterior.weights)  # noqa: E731
    monkeypatch.setattr(measure, "coefficient_at_temperature", seen)
    with pytest.raises(TypeError):
        measure.coefficient(model, text, 1, POINT, key=jax.random.key(1))
    (mask,) = masks
    count = sum(int(np.sum(leaf)) for leaf in jax.tree.leaves(mask))
    head = mask.blocks[1].attention
    assert count == 4 * 8 * 4  # queries, keys, values and output of width 8 and dimension 4
    assert all(weights[:, 1].all() for weights in (head.query, head.key, head.value))
    assert head.output[1].all()


@pytest.mark.slow
def test_checkpoints_of_a_cell_are_opened_by_the_network_of_the_documentation(tmp_path):
    """The run of ``smoke`` leaves networks that ``icl.load`` opens at every step, and refuses of another network."""
    icl.run("language/induction_bump", "smoke", out=tmp_path)
    (cell,) = (tmp_path / "language" / "induction_bump" / "smoke" / "checkpoints").iterdir()
    point = SimpleNamespace(width=8, heads=2, tokens=36)
    network = measure.network_of(point, 2, key=jax.random.key(5))
    run = icl.load(cell / "seed=0", network)
    assert run.trajectory.steps == (0, 4)
    assert not np.array_equal(*(run.trajectory.at(step).member(0).blocks[1].attention.query for step in (0, 4)))
    with pytest.raises(InputError, match="expected"):
        icl.load(cell / "seed=0", measure.network_of(point, 1, key=jax.random.key(5)))


def test_queries_are_held_and_all_else_is_trained():
    network = measure.network_of(POINT, 2, key=jax.random.key(0))
    held, trained = (jax.tree.leaves(where(network)) for where in (measure.queries, measure.all_but_queries))
    leaves = jax.tree.leaves(network)
    assert {id(leaf) for leaf in held}.isdisjoint(id(leaf) for leaf in trained)
    assert len(held) + len(trained) == len(leaves)
    text = Text.from_documents(measure.corpus(claim.TABLES), tokens=POINT.tokens, alphabet=measure.PRINTABLE)
    start = eqx.tree_at(measure.queries, network, replace_fn=jnp.zeros_like)
    options = {"steps": 1, "batch": 2, "record": Record([0], progress=False), "key": jax.random.key(1)}
    end = icl.fit(start, text, trainable=measure.all_but_queries, **options).members.member(0)
    assert all(np.all(leaf == 0) for leaf in measure.queries(end))
    assert not np.allclose(end.blocks[1].attention.value, network.blocks[1].attention.value)


def test_records_are_delayed_by_the_lag():
    steps = [0, 10, 20, 40, 80]
    assert measure.delayed_records(steps, 1).tolist() == [0, 1, 2, 3, 4]
    assert measure.delayed_records(steps, 2).tolist() == [0, 0, 1, 2, 3]
    assert measure.delayed_records(steps, 0.5).tolist() == [0, 2, 3, 4, 4]
