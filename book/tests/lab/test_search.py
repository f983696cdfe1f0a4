"""What a reader types finds the claims and the sources that are meant."""

import subprocess
import sys

import pytest

from icllab.core.sources import references
from icllab.lab import records, registry, search


@pytest.fixture(scope="module")
def cards():
    return [records.card(name) for name in registry.claims()]


def names(query, cards):
    return [card.claim for card in search.claims(query, cards)[0]]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("double descent", "asymptotics/double_descent"),
        ("Double_Descent", "asymptotics/double_descent"),
        ("descent double", "asymptotics/double_descent"),
        ("task diversity", "asymptotics/task_diversity"),
        ("asymptotics/ridge_tames_the_peak", "asymptotics/ridge_tames_the_peak"),
        ("the tamed peaks of ridges", "asymptotics/ridge_tames_the_peak"),
    ],
)
def test_words_are_found_one_by_one(query, first, cards):
    assert names(query, cards)[0] == first


def test_an_or_finds_either_side(cards):
    fits = set(names("grokking or memorising", cards))
    assert {"asymptotics/odds_of_memorising", "induction/race_of_memorising"} <= fits
    assert fits == set(names("memorization", cards))
    assert set(names("saddle or memorising", cards)) == fits | set(names("saddle", cards))


@pytest.mark.parametrize("query", ["2405.11751", "arXiv:2405.11751v2", "Letey Maiti", "Lu24", "zavatone-veth 2025"])
def test_a_source_is_found_by_number_author_year_and_key(query, cards):
    expected = {card.claim for card in cards if any(source.key == "Lu24" for source in card.sources)}
    assert expected <= set(names(query, cards))
    found, whole = search.sources(query, references().values())
    assert whole
    assert references()["Lu24"] in found


def test_a_name_is_found_without_its_accent():
    assert search.sources("raventos", references().values()) == search.sources("RAVENTÓS", references().values())
    assert search.sources("raventos", references().values())[1]


def test_claims_with_all_words_leave_out_those_with_some(cards):
    both, whole = search.claims("double descent", cards)
    some, partly = search.claims("double xylophone", cards)
    assert (whole, partly) == (True, False)
    assert {card.claim for card in both} < {card.claim for card in search.claims("descent", cards)[0]}
    assert {card.claim for card in some} == {card.claim for card in search.claims("double", cards)[0]}
    assert search.claims("xylophone", cards) == ([], False)


def test_the_nearest_names_are_told(cards):
    assert search.nearest("dubble desent", cards).startswith("asymptotics/double_descent")
    assert "Letey24" in search.nearest("lettey", cards, references().values())


def test_a_search_imports_no_jax_and_no_xarray(tmp_path):
    code = """if 1:
        import sys
        from icllab.cli import main
        assert main(["list", "double", "descent"]) == main(["cite", "2405.11751"]) == 0
        assert not {"jax", "xarray", "matplotlib"} & set(sys.modules), sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)  # without results
