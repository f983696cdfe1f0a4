"""The exact value against the reference's, and against chains that are run."""

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.theory.quadratic_posterior import learning_coefficient


def test_ten_equal_directions():
    nbeta = 1e6 / np.log(1e6)
    found = [learning_coefficient(np.ones(10), nbeta=nbeta, localization=1, step_size=f / nbeta) for f in (0, 0.1, 1)]
    assert found == pytest.approx([5, 5.128, 6.667], abs=5e-4)


def test_without_a_pull_it_is_half_the_rank_at_every_temperature():
    for nbeta in (0.1, 10, 1e9):
        assert learning_coefficient([3.0, 1e-9, 0.0, 7.0], nbeta=nbeta) == pytest.approx(1.5, rel=1e-14)
    assert learning_coefficient([0.0, 0.0], nbeta=1.0) == 0


def test_chains_have_it():
    """Langevin dynamics itself, 20000 chains: within four standard errors, which are below half a per cent."""
    h, nbeta, gamma, step = np.array([2.0, 0.3, 0.01]), 5.0, 0.4, 0.11
    generator = np.random.default_rng(0)
    w = np.zeros((20_000, 3))
    for _ in range(300):
        w += -step / 2 * (nbeta * h + gamma) * w + np.sqrt(step) * generator.normal(size=w.shape)
    values = nbeta * (h * w**2).sum(axis=1) / 2
    error = values.std(ddof=1) / np.sqrt(len(values))
    exact = learning_coefficient(h, nbeta=nbeta, localization=gamma, step_size=step)
    assert error < 0.01 * exact
    assert abs(values.mean() - exact) < 4 * error
    assert abs(values.mean() - learning_coefficient(h, nbeta=nbeta, localization=gamma)) > 10 * error


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nbeta": 0.0}, "nbeta: expected a finite number > 0"),
        ({"nbeta": 1.0, "localization": -1}, "localization: expected a finite number >= 0"),
        ({"nbeta": 1.0, "step_size": 2.0}, "step_size: expected below 2, where the chain diverges"),
    ],
)
def test_bad_questions(fields, said):
    with pytest.raises(InputError) as error:
        learning_coefficient([2.0], **fields)
    assert said in str(error.value)
