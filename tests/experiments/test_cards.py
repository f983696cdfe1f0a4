"""A card has what a claim says and what its record says, and nothing of its own."""

import json

import pytest
from faults.processes import CLAIM, CLAIMS

from icllab.experiments import cards, digests, records, registry


@pytest.fixture
def folder(tmp_path):
    """A folder of one's own with the toy claim as a folder; ``record(sizes)`` writes its record."""
    place = tmp_path / "claims" / "steady"
    place.mkdir(parents=True)
    (place / "claim.py").write_text((CLAIMS / "steady.py").read_text())

    def record(**verdicts):
        digest = digests.measurement(place / "claim.py")
        entries = {size: {"verdict": verdict, "digest": digest} for size, verdict in verdicts.items()}
        (place / "record.json").write_text(json.dumps(entries))
        return tmp_path / "claims"

    return record


@pytest.mark.parametrize("claim", registry.claims())
def test_a_card_says_what_claim_and_record_say(claim):
    card, experiment, record = cards.card(claim), registry.load(claim), records.read(claim)
    assert (card.claim, card.sentence, card.conditions) == (claim, experiment.claim, experiment.conditions)
    assert tuple(source.key for source in card.sources) == experiment.sources
    assert card.controls.keys() == experiment.controls.keys()
    assert {size: entry["verdict"] for size, entry in card.record.items()} == {
        size: entry["verdict"] for size, entry in record.items()
    }
    assert card.subject == claim.split("/")[0]


def test_the_verdict_is_that_of_the_largest_size_with_a_record(folder):
    assert (cards.card(CLAIM, folder()).recorded, cards.card(CLAIM, folder()).verdict) == (None, None)
    card = cards.card(CLAIM, folder(medium="fails", small="holds"))
    assert (list(card.record), card.recorded, card.verdict) == (["small", "medium"], "medium", "fails")


def test_a_card_is_stale_when_what_was_measured_has_changed(folder):
    place = folder(smoke="holds")
    assert not cards.card(CLAIM, place).stale
    file = place / "steady" / "claim.py"
    file.write_text(file.read_text().replace(".normal() / 10", ".normal() / 11"))
    digests.forget()
    assert cards.card(CLAIM, place).stale


def test_the_ordinary_size_is_one_that_the_claim_has():
    sizes = {claim: cards.card(claim).ordinary for claim in registry.claims()}
    assert all(size in registry.load(claim).sizes for claim, size in sizes.items())
    assert sizes["asymptotics/double_descent"] == "small"
    assert sizes["context_map/simplest_model"] == "medium"
