"""The table that claims share, and the predictors that are fitted to it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.asymptotics import _tables as tables
from icllab.core.errors import EnvironmentFault
from icllab.tasks import Table


def test_half_a_unit_is_a_quarter_of_a_squared_unit_over_the_variance():
    assert np.var(tables.diabetes().target) == pytest.approx(0.25 / tables.RESOLVED, rel=1e-4)


def test_the_logarithm_of_an_exact_answer_is_that_of_half_a_unit():
    assert tables.log_losses(np.array([0.0, 1.0])).tolist() == [np.log(tables.RESOLVED), 0.0]


@pytest.mark.parametrize("name", tables.FITTED)
def test_a_line_that_all_rows_lie_on_is_found_and_later_rows_are_not_looked_at(name, getkey):
    """Linear estimators get it right; the others do better than the mean; what stands after the query is ignored."""
    x = jax.random.normal(getkey(), (60, 2))
    table = Table(x, x[:, 0] * 3 + 1, length=40)
    prompts = jax.vmap(lambda k: table.sample(key=k))(jax.random.split(getkey(), 4))
    losses = tables.fitted_losses(name, prompts, 30, table)
    assert np.mean(losses) < (1e-3 if name == "ridge by CV" else 0.5)
    later = jax.tree.map(lambda a: jnp.concatenate([a[:, :31], 0 * a[:, 31:]], axis=1), prompts)
    assert tables.fitted_losses(name, later, 30, table) == losses


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(EnvironmentFault, match=r"diabetes table: expected scikit-learn.*pip install -e \S*\[tables\]"):
        tables.diabetes()
