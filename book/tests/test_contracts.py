"""Every claim keeps the contracts of :mod:`icllab.testing` on its recorded data; those of minutes are slow."""

import pytest

from icllab.testing import CONTRACTS, contracts

LONG = ("cut_axis", "descending_axis", "no_number_is_undecided", "requested_values")
"""Contracts that repeat theories and checks for each axis, or measure; the order of axes is the laboratory's."""

pytestmark = pytest.mark.claims
test_contracts = contracts(None, *(name for name in CONTRACTS if name not in LONG))
test_long_contracts = pytest.mark.slow(contracts(None, *LONG))
