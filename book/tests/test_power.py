"""Power tables: which families a claim's statistics have."""

from icllab.lab.power import false_alarms, power_of, tables


def test_a_family_belongs_to_the_claim_whose_check_it_plants():
    own = power_of("context_map/flag_token", set())
    assert list(own) == ["flag_token"]
    assert own["flag_token"]["claims_check"]
    assert not power_of("context_map/simplest_model", {"iclbook.claims.context_map.flag_token.claim.check"})


def test_a_shared_statistic_is_known_by_the_name_that_exports_it():
    families = power_of("a/b", {"icllab.diagnostics.transitions", "icllab.lab.checks.agrees", "numpy.median"})
    assert {name: family["claims_check"] for name, family in families.items()} == {"abrupt": False, "agrees": False}
    assert not power_of("a/b", {"icllab.lab.checks", "icllab.lab.checks.disagrees", "icllab.theory.transitions"})


def test_false_alarms_are_those_of_the_worst_end():
    record = {
        "strengths": [0.0, 1.0],
        "replicates": 10,
        "verdicts": {"yes": [1, 7], "no": [9, 2], "undecided": [0, 1]},
        "false": {"0.0": ["yes", "undecided"], "1.0": ["no", "undecided", "never given"]},
    }
    assert false_alarms(record) == (3, 10)
    assert len(tables()) >= 29
