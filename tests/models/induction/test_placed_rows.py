"""Everything that is known of placed rows without writing them down, against the rows written down."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.models.induction.placed_rows import PlacedRows, Updated, WrittenOut
from icllab.tasks import ItemLabel


@pytest.mark.parametrize("position_dim", [8, pytest.param(5, marks=pytest.mark.slow)])
def test_rows_and_sums_of_them(position_dim, getkey):
    with jax.enable_x64(True):
        task = ItemLabel.drawn(classes=None, labels=3, pairs=2, dim=4, position_dim=position_dim, key=getkey())
        prompt = task.sample(key=getkey())
        dense = np.asarray(prompt.tokens())
        matrix, vectors = (
            jax.random.normal(getkey(), (position_dim + 4, 6)),
            jax.random.normal(getkey(), (3, position_dim + 4)),
        )
        once, twice = jax.random.normal(getkey(), (4, 5)), jax.random.normal(getkey(), (2, 4))
        rows = PlacedRows.of(prompt)
        some = rows.mixed(once)
        for found, wanted in (
            (rows, dense),
            (some, once @ dense),
            (some.mixed(twice), twice @ once @ dense),
            (some.last(), (once @ dense)[-1:]),
            (rows.last(), dense[-1:]),
            (PlacedRows.all_content(jnp.asarray(dense)).mixed(once), once @ dense),
        ):
            np.testing.assert_allclose(found.written_out(), wanted, atol=1e-13)
            np.testing.assert_allclose(found.times(matrix), wanted @ matrix, atol=1e-13)
            np.testing.assert_allclose(found.against(vectors), vectors @ wanted.T, atol=1e-13)
        np.testing.assert_allclose(rows.summed(once), once @ dense, atol=1e-13)


def test_tokens_after_a_layer(getkey):
    with jax.enable_x64(True):
        task = ItemLabel.drawn(classes=None, labels=3, pairs=2, dim=4, position_dim=7, key=getkey())
        rows = PlacedRows.of(task.sample(key=getkey()))
        pattern, value = jax.random.normal(getkey(), (5, 5)), jax.random.normal(getkey(), (11, 11))
        vectors, weights = jax.random.normal(getkey(), (2, 11)), jax.random.normal(getkey(), (3, 5))
        dense = rows.written_out()
        wanted = WrittenOut(dense + pattern @ dense @ value)
        found = Updated(rows, rows.mixed(pattern), value)
        np.testing.assert_allclose(found.against(vectors), wanted.against(vectors), atol=1e-12)
        np.testing.assert_allclose(found.summed(weights), wanted.summed(weights), atol=1e-12)
