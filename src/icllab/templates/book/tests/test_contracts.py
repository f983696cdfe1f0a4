"""Every claim keeps the contracts of icl-lab on its recorded data."""

from pathlib import Path

from icllab import testing

test_contracts = testing.contracts(Path(__file__).parents[1] / "src" / "my_claims")
