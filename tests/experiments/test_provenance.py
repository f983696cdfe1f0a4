"""The commit and the configuration under which a result was made."""

from icllab.experiments import provenance
from icllab.experiments.store import SCHEMA


def test_the_commit_is_a_hash_or_nothing():
    commit = provenance.commit()
    assert commit == "" or len(commit.removesuffix("+changes")) == 40


def test_the_configuration_is_what_a_cell_depends_on():
    from icllab.experiments import registry

    experiment = registry.load("asymptotics/double_descent")
    here = provenance.configuration(experiment, "smoke", None, SCHEMA)
    assert here["fixed"] == dict(experiment.fixed)
    other = experiment.with_fixed({"rho": [0.5]})
    assert provenance.configuration(other, "smoke", None, SCHEMA) != here
    assert provenance.configuration(experiment, "smoke", "slide_q", SCHEMA) != here
    assert provenance.configuration(experiment, "small", None, SCHEMA) != here
