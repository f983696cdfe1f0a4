"""Power tables: which families a claim's statistics have."""

from icllab.lab import power
from icllab.lab.power import false_alarms, power_of, tables


def test_a_family_belongs_to_the_claim_whose_check_it_plants():
    families = power_of("context_map/flag_token")
    assert {name: family["claims_check"] for name, family in families.items()} == {"flag_token": True, "near": False}
    assert "flag_token" not in power_of("context_map/simplest_model", {"flag_token"})


def test_a_shared_statistic_belongs_to_the_claims_that_its_record_names(monkeypatch):
    assert not power_of("a/b")
    assert {name: x["claims_check"] for name, x in power_of("a/b", ["agrees", "nothing"]).items()} == {"agrees": False}
    named = {name: {**record, "claims": ["a/b"] * (name == "rhat")} for name, record in tables().items()}
    monkeypatch.setattr(power, "tables", lambda: named)
    assert list(power_of("a/b")) == ["rhat"]
    assert "claims" not in power_of("a/b")["rhat"]


def test_false_alarms_are_those_of_the_worst_end():
    record = {
        "strengths": [0.0, 1.0],
        "replicates": 10,
        "verdicts": {"yes": [1, 7], "no": [9, 2], "undecided": [0, 1]},
        "false": {"0.0": ["yes", "undecided"], "1.0": ["no", "undecided", "never given"]},
    }
    assert false_alarms(record) == (3, 10)
    assert len(tables()) >= 29
