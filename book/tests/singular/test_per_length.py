"""What is learned first: made-up training runs whose order is known."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular.per_length import claim
from icllab.lab.checks import Outcome

STEPS = (0, *np.unique(np.rint(np.geomspace(4, 4000, 37))).astype(int).tolist())
LENGTHS = np.arange(1, 17)
LEAST = np.array([1.5, 1.4, 1.27])


def results(*, steps=STEPS, by_length=0.5, nearest=(50, 200, 1000, 4000), entropy=LEAST, seeds=5):
    """Losses that fall exponentially, at times that rise as a power of the length, for the chain up to three tokens."""
    generator = np.random.default_rng(0)
    step, seed = np.array(steps), np.arange(seeds)
    wobble = np.exp(0.02 * generator.normal(size=(seeds, 16)))
    parts = []
    for name in (claim.CHAIN, claim.TEXT):
        most = np.minimum(LENGTHS, 3) if name == claim.CHAIN else LENGTHS
        rate = 30 * most**by_length * wobble
        end = LEAST[np.minimum(LENGTHS, 3) - 1] if name == claim.CHAIN else 2.5 - 0.2 * np.log(LENGTHS)
        left = 0.6 * np.exp(-step[None, :, None] / rate[:, None])
        noise = 0.003 * generator.normal(size=(seeds, 1, 16))
        truth = np.full((seeds, 16), np.nan)
        if name == claim.CHAIN:
            truth[:] = entropy[np.minimum(LENGTHS, 3) - 1]
        apart = np.log(np.maximum(step, 1))[None, None] - np.log(np.array(nearest))[None, :, None]
        near = 0.1 + apart**2 + 0.001 * generator.normal(size=(seeds, 4, len(step)))
        if name == claim.TEXT:
            near[:, 3] = np.nan
        data = {
            "loss": (("seed", "step", "position"), end + left + noise),
            "standard_error": (("seed", "step", "position"), np.full(left.shape, 0.003)),
            "divergence": (("seed", "step", "position"), left if name == claim.CHAIN else np.nan * left),
            "entropy": (("seed", "position"), truth),
            "ngram_distance": (("seed", "ngram", "step"), near),
            "ngram_loss": (
                ("seed", "ngram", "position"),
                np.tile(np.array([3, 2.9, 2.8, 2.7])[:, None], (seeds, 1, 16)),
            ),
        }
        coords = {"seed": seed, "step": step, "position": LENGTHS - 1, "ngram": [1, 2, 3, 4]}
        parts.append(xr.Dataset(data, coords=coords))
    found = xr.concat(parts, dim="source").assign_coords(source=[claim.CHAIN, claim.TEXT])
    return found.assign_attrs(configuration=json.dumps({"fixed": dict(claim.claim.fixed)}))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_longer_contexts_are_learned_later():
    assert outcome(results()) is Outcome.HOLDS, [f for f in claim.check(results()) if f.outcome is not Outcome.HOLDS]


def test_it_fails_where_they_are_learned_earlier():
    wrong = set(failing(results(by_length=-0.5)))
    assert "order[source=text]" in wrong
    assert "two_later[source=Markov]" in wrong


def test_all_lengths_at_once_is_not_an_order():
    found = {f.id: f for f in claim.check(results(by_length=0.0))}
    assert found["two_later[source=text]"].outcome is not Outcome.HOLDS
    assert found["longest_later[source=text]"].outcome is not Outcome.HOLDS


def test_it_fails_where_bigrams_come_before_unigrams():
    wrong = set(failing(results(nearest=(200, 50, 1000, 4000))))
    assert wrong == {f"likeness[source={source},n=2]" for source in (claim.TEXT, claim.CHAIN)}


def test_it_fails_with_other_entropies_and_is_undecided_when_training_is_short():
    assert set(failing(results(entropy=LEAST[::-1]))) == {f"entropy[tokens={tokens}]" for tokens in ("1", "3 or more")}
    assert "entropy[tokens=1]" in failing(results(entropy=np.full(3, LEAST[-1])))
    assert len(failing(results(entropy=LEAST / np.log(2)))) == 3
    assert outcome(results(steps=(0, 8, 100))) is Outcome.UNDECIDED
    assert outcome(results().sel(source=[claim.CHAIN])) is Outcome.UNDECIDED


def test_times_are_those_of_an_exponential_and_minima_those_of_a_parabola():
    dataset = results(by_length=1.0).sel(source=claim.TEXT)
    time = claim.learning_times(claim.octaves(dataset["loss"]).isel(length=[0, 1]))
    np.testing.assert_allclose(time.mean("seed"), 30 * np.log(20) * np.array([1, 2]), rtol=0.08)
    near = claim.nearest_times(dataset["ngram_distance"])
    np.testing.assert_allclose(near.isel(ngram=[0, 1, 2]).mean("seed"), [50, 200, 1000], rtol=0.03)
    assert np.isnan(near.isel(ngram=3)).all()


def test_octaves_are_means_over_their_lengths():
    values = xr.DataArray(np.arange(1.0, 17.0), dims="position", coords={"position": LENGTHS - 1})
    found = claim.octaves(values)
    np.testing.assert_array_equal(found["length"], [1, 2, 4, 8, 16])
    np.testing.assert_allclose(found, [1, 2, 3.5, 6.5, 12.5])


@pytest.mark.parametrize(("order", "expected"), [(1, 1.0), (-1, -1.0)])
def test_a_rank_correlation_of_every_seed(order, expected):
    time = xr.DataArray(np.tile(np.arange(5.0)[::order], (3, 1)), dims=("seed", "length"), coords={"length": range(5)})
    np.testing.assert_allclose(claim.rank_correlation(time), expected)
