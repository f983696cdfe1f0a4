"""Checklists: answered where the certificate knows, open where it does not."""

import copy
import json

import pytest

from icllab.lab import certificate, checklists
from icllab.lab.evidence import evidence_of


@pytest.fixture(scope="module")
def computed():
    """All that can be computed of a claim's record."""
    return certificate.assemble(evidence_of("asymptotics/double_descent"))


def test_checklists_leave_open_what_a_certificate_does_not_know(computed):
    lists = checklists.answers(computed)
    assert len(lists["NeurIPS"]) == 16
    left = [item.split()[0] for item, answer in lists["NeurIPS"].items() if answer is None]
    assert left == ["3", "9", "10", "11", "12", "13", "14", "15", "16"]
    assert "0.175 core-hours" in lists["NeurIPS"]["8 Compute"]
    assert "key 0, 48 seeds" in lists["NeurIPS"]["4 Results can be reproduced"]
    elsewhere = checklists.answers({**computed, "origin": "results"})
    assert elsewhere["NeurIPS"]["5 Open data and code"] is None
    content = copy.deepcopy(computed)
    content["findings"]["peak_limit"] |= {"falsified_by": [], "outcome": "undecided"}
    scope = checklists.answers(content)["NeurIPS"]["2 Limitations"]
    assert scope.endswith("1 of 14 findings are undecided. No recorded control falsifies 1 of 14 findings.")
    assert json.loads(json.dumps(lists)) == lists
