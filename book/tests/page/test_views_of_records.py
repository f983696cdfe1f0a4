"""Every view of a record has the same verdict and the same counts."""

import pytest
from page.test_verdicts import ALL

from icllab.lab import records, registry


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("singular/exact_coefficients", "holds"),
        ("routing/daughters_in_the_whole", "undecided"),
    ],
)
def test_views_of_a_record_agree(name, verdict, views, monkeypatch):
    monkeypatch.setattr(registry, "claims", lambda folder=None: {name: ALL(folder)[name]})
    answers = views(name, recorded=True)
    assert answers == dict.fromkeys(answers, answers["by hand"])
    assert answers["check"][0] == verdict == records.card(name).verdict
    assert answers["check"][2] > 0
    assert answers["check"][4] > 0  # both have conditions too
