"""What is particular to this claim: its check on made-up dimensions, and its four measurements beside known numbers."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular import _ranks as ranks
from iclbook.claims.singular.effective_dimension_across_the_cliff import claim, divergences, measure
from icllab.lab.checks import Outcome
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel
from icllab.theory import induction_landscape

RESOLUTIONS, SEEDS = [0.001, 0.1], 10
FIXED = {"pairs": 4, "label_count": 16, "dim": 4, "key_width": 3, "nbeta": 72382.0}
POINT = {"alpha": 3.3, "beta": 2.5, "xi": 4.5}


def made_up(
    rise=0.5,
    late=0.5,
    fine=0.9,
    quadrature=1.0,
    off=0.0,
    rank=0,
    flat=1e-15,
    closed=0.0,
    logits=1.5,
    warned=0,
):
    rng = np.random.default_rng(0)
    point = np.array([POINT[name] for name in POINT])
    sizes = {"pairs": 4, "labels": 16}
    steep = np.linalg.eigvalsh(induction_landscape.fisher_information(**POINT, **sizes)).clip(0)
    own = (steep / (steep + np.array(RESOLUTIONS)[:, None])).sum(1)
    count = len(claim.MODELS)
    dimension = np.full((count, SEEDS, 4, 2), np.nan)
    for m, name in enumerate(claim.MODELS):
        if name != "attention":
            dimension[m] = own * (1 + closed)
    dimension[1, :, 0], dimension[1, :, 2] = dimension[1, :, 1] - rise, late * dimension[1, :, 1]
    dimension[3:, :, 2] = late * dimension[3:, :, 1]
    dimension[3:, :, 0] = dimension[3:, :, 1] / np.array([fine, 1.2])
    dimension[1:] *= 1 + 0.001 * rng.normal(size=(count - 1, SEEDS, 4, 1))
    known = np.array([4.9106, 6.0, 6.9106, 7.5])
    coefficient = np.full((count, SEEDS, 4), np.nan)
    coefficient[2] = known + off + 0.01 * rng.normal(size=(SEEDS, 4))
    stage = np.arange(4.0)
    dims = ("model", "seed", "stage")
    dataset = xr.Dataset(
        {
            "strengths": ((*dims, "strength"), np.broadcast_to(point, (count, SEEDS, 4, 3))),
            "effective_dimension": ((*dims, "resolution"), dimension),
            "logit_dimension": (
                (*dims, "resolution"),
                dimension[:, :, :1] * np.array([1, logits, 1, 1])[None, None, :, None],
            ),
            "resolved_coefficient": ((*dims, "resolution"), quadrature * dimension / 2),
            "resolved_coefficient_error": ((*dims, "resolution"), 0.001 * dimension),
            "flat_share": (dims, np.full((count, SEEDS, 4), flat)),
            "learning_coefficient": (dims, coefficient),
            "learning_coefficient_error": (dims, np.full((count, SEEDS, 4), 0.01)),
            "learned_rank": (dims, np.broadcast_to(stage + rank * (stage == 1), (count, SEEDS, 4))),
            "sampler_warnings": (dims, np.full((count, SEEDS, 4), float(warned))),
            "label_loss": (dims, np.full((count, SEEDS, 4), 0.01)),
        },
        coords={"model": list(claim.MODELS), "stage": np.arange(4), "resolution": RESOLUTIONS, "strength": list(POINT)},
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    # The landscape's own rise and fall are those of one point: other stages are made from it.
    for s, factor in ((0, 0.4), (2, late)):
        where = (dataset.model == "landscape") & (dataset.stage == s)
        for name in ("effective_dimension", "resolved_coefficient", "resolved_coefficient_error"):
            dataset[name] = dataset[name].where(~where, dataset[name] * factor)
    found = claim.theory(dataset)
    line = found["effective_dimension_theory"]
    return found.assign(effective_dimension_theory=line.where(line.stage != 0, 0.4 * line))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split(",")[0].split("[")[0] for name in failing(dataset)}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rise": 0.1}, {"rise"}),
        ({"late": 1.2}, {"fall", "late"}),
        ({"late": 0.97}, {"fall"}),
        ({"fine": 1.1}, {"fine"}),
        ({"quadrature": 1.3}, {"quadrature"}),
        ({"closed": 0.2}, {"closed_form"}),
        ({"flat": 1e-3}, {"two_numbers"}),
        ({"off": 0.5}, {"coefficient"}),
        ({"rank": 1}, {"rank", "rank_most"}),
        ({"logits": 0.8}, {"logits"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) == found


def test_many_warnings_leave_it_undecided():
    assert outcome(made_up(warned=1)) is Outcome.UNDECIDED
    dataset = made_up()
    for seeds, found in ((4, Outcome.HOLDS), (5, Outcome.UNDECIDED)):
        dataset["sampler_warnings"][{"model": 2, "seed": range(seeds), "stage": 0}] = 1.0
        assert outcome(dataset) is found


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_the_landscape_is_the_closed_form_and_a_head_is_the_model():
    """Losses and Fisher matrices in float64; logits of a minimal head up to what softmax does not see."""
    w = jnp.array([1.0, 2.0, 4.0])
    answers = divergences.Landscape(pairs=4, labels=16)
    np.testing.assert_allclose(-answers(w)[0, 0], induction_landscape.loss(*w, pairs=4, labels=16), rtol=1e-12)
    known = induction_landscape.fisher_information(*w, pairs=4, labels=16)
    np.testing.assert_allclose(divergences.information(answers, w), known, rtol=1e-9, atol=1e-14)
    task = ItemLabel.init(classes=None, labels=5, pairs=3, dim=7, no_repeats=True, key=jax.random.key(0))
    prompts = task.sample_many(4, key=jax.random.key(1))
    head = divergences.Head.from_prompts(prompts, 5)
    traced = jax.vmap(lambda prompt: head.model(w).trace(prompt).prediction[-1])(prompts)
    np.testing.assert_allclose(head(w), jax.nn.log_softmax(traced), rtol=1e-6)  # prompts are of float32
    losses = jax.vmap(lambda prompt: task.loss(head.model(w)(prompt), prompt)[-1])(prompts)
    np.testing.assert_allclose(head.loss(w), jnp.mean(losses), rtol=1e-6)


def test_a_divergence_is_zero_at_its_point_and_bends_as_the_fisher_matrix():
    w, answers = jnp.array([1.0, 2.0, 4.0]), divergences.Landscape(pairs=4, labels=16)
    steep, axes = np.linalg.eigh(np.asarray(divergences.information(answers, w)))
    along = divergences.Turned(answers, w, jnp.asarray(axes), answers(w))
    assert abs(float(along(jnp.zeros(3)))) < 1e-15
    for i, h in ((1, 1e-2), (2, 1e-3)):
        both = [float(along(jnp.asarray(s * h * np.eye(3)[i]))) for s in (1, -1)]
        np.testing.assert_allclose(sum(both) / h**2, steep[i], rtol=1e-3)


def test_rows_have_the_nonzero_spectrum_of_both_metrics():
    """Beside the sum over prompts of slopes times the covariance of the answers, written out."""
    task = ItemLabel.init(classes=None, labels=3, pairs=2, dim=2, no_repeats=True, key=jax.random.key(0))
    network = ItemLabelNetwork.from_task(task, depth=0, key=jax.random.key(1))
    prompts = task.sample_many(3, key=jax.random.key(2))
    params, rest = divergences.eqx.partition(network, divergences.eqx.is_inexact_array)
    flat, unravel = divergences.ravel_pytree(params)

    def logits(w):
        model = divergences.eqx.combine(unravel(w), rest)
        return jax.vmap(lambda prompt: model.trace(prompt).prediction[-1])(prompts)

    slopes, chance = jax.jacrev(logits)(flat), jax.nn.softmax(logits(flat))
    covariance = jax.vmap(jnp.diag)(chance) - chance[:, :, None] * chance[:, None]
    centred = jnp.eye(3) - 1 / 3
    for rows, inner in zip(
        divergences.rows(network, prompts), (covariance, centred[None] + 0 * covariance), strict=True
    ):
        whole = jnp.einsum("pli,plm,pmj->ij", slopes, inner, slopes) / 3
        np.testing.assert_allclose(rows.T @ rows, whole, rtol=1e-5, atol=1e-7)


def test_plateaus_have_the_exact_losses_and_the_ranks():
    """Descent passes each saddle; a machine's best matrix has the least loss there is."""
    machine = ranks.Machine.init(3, 2, (1.0, 0.5))
    levels, singular = machine.plateau_losses(2)
    np.testing.assert_allclose(levels[0], float(jnp.mean(machine.label**2) / 2), rtol=1e-12)
    design = (machine.query[:, :, None] * machine.context[:, None]).reshape(len(machine.label), -1)
    fitted = np.asarray(design) @ np.linalg.lstsq(np.asarray(design), np.asarray(machine.label), rcond=None)[0]
    np.testing.assert_allclose(levels[2], np.mean((fitted - np.asarray(machine.label)) ** 2) / 2, rtol=1e-9)
    path = ranks.descend(machine, ranks.small_weights(jax.random.key(0), 3, 2))
    found = ranks.plateaus(machine, path, 2)
    assert [rank for *_, rank in found] == [0, 1, 2]
    np.testing.assert_allclose([loss for _, loss, _ in found], levels, rtol=1e-3)
    assert singular[0] > 1.5 * singular[1]


def test_stages_are_half_way_to_the_cliff_at_its_foot_and_the_end():
    losses = np.array([3.0, 2.5, 2.0, 1.5, 1.2, 0.8, 0.3, 0.1, 0.05])
    assert measure.stages(losses, 4) == (2, 6, 8)
    assert measure.stages(np.full(5, 3.0), 4) == (2, 4, 4)
    assert measure.dimensions([-1.0, 0.0, 1.0, 3.0], (1.0,)) == [0.5 + 0.75]


def test_models_and_seeds_have_keys_of_their_own(monkeypatch):
    keys = []

    def noted(point, seed, key, **how):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return {0: {}}

    for model in claim.MODELS:
        monkeypatch.setattr(measure, model.split()[0], noted)
        point = SimpleNamespace(model=model, stage=("end",), resolution=(1e-3,), strength=("beta",), seed=(0, 1))
        measure.measure(point, key=jax.random.key(0))
    assert len(set(keys)) == len(keys) == 2 * len(claim.MODELS)


def test_of_a_network_loss_and_dimensions_are_those_of_its_stages(monkeypatch):
    """Of one that grows instead of being trained, after 0, 25 and 50 steps; and no more dimensions than rows."""
    seen = []

    def fit(network, task, *, steps, batch, key, **how):
        assert (steps, batch, key.shape) == (50, 128, ())

        def at(step):
            return SimpleNamespace(member=lambda _: jax.tree.map(lambda leaf: leaf * (1 + step / 25), network))

        return SimpleNamespace(trajectory=SimpleNamespace(at=at))

    monkeypatch.setattr(measure.icl, "fit", fit)
    monkeypatch.setattr(measure, "stages", lambda losses, pairs: seen.append(losses) or [2, 0])
    point = SimpleNamespace(network_steps=50, network_rate=0.1, network_prompts=4, resolution=(1e-9, 1e9))
    found = measure.network(point, 0, jax.random.key(0), dim=8, logits=False)
    (losses,) = seen
    assert len(losses) == 3
    assert len(set(losses)) == 3
    assert [found[stage]["label_loss"] for stage in (0, 1)] == [losses[2], losses[0]]
    for one in (found[0], found[1]):
        fine, coarse = one["effective_dimension"]
        assert 4 - 1e-3 < fine < 4 * 6 + 1e-3
        assert coarse < 1e-3


def test_controls_turn_the_stages_and_draw_the_items(monkeypatch):
    """Backwards, the last stage is the first; with random items the landscape's cell is a head's."""
    monkeypatch.setattr(
        measure, "head", lambda point, seed, key, **how: {s: {"label_loss": s + point.localization} for s in (0, 1, 2)}
    )
    point = SimpleNamespace(
        model="landscape", stage=(0, 1, 2), resolution=(1e-3,), strength=("beta",), seed=(0,), localization=9.0
    )
    orders = {"backwards": [11, 10, 9], "later": [10, 11, 11], "wide": [1, 2, 3]}
    for options, known in (({}, [9, 10, 11]), *(({name: True}, order) for name, order in orders.items())):
        found = measure.measure(point, key=jax.random.key(0), items=True, **options)
        assert found["label_loss"][1][0].tolist() == known
