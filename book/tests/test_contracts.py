"""Every claim keeps the contracts of :mod:`icllab.testing` on its recorded data."""

import pytest

from icllab.testing import contracts

pytestmark = pytest.mark.claims
test_contracts = contracts()
