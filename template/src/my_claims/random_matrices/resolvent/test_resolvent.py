"""The claim holds at ``small``, fails under each of its negative controls, and keeps the contracts of claims."""

from pathlib import Path

import icllab as icl
from icllab.lab import registry
from icllab.testing import contracts

FOLDER = Path(__file__).parent
NAME = f"{FOLDER.parent.name}/{FOLDER.name}"
test_contracts = contracts(FOLDER)


def verdict(out, control=None):
    """Run the claim, and judge it."""
    icl.run(NAME, out=out, control=control, claims=FOLDER, progress=False)
    return icl.check(NAME, out=out, control=control, claims=FOLDER).outcome.value


def test_the_claim_holds(tmp_path):
    """At the size that is judged."""
    assert verdict(tmp_path) == "holds"


def test_the_claim_fails_under_every_control(tmp_path):
    """A check that cannot fail is no check."""
    for control in registry.load(NAME, FOLDER).controls:
        assert verdict(tmp_path, control) == "fails", control
