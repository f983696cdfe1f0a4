"""Everything that is known of placed rows without writing them down, against the rows written down."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.models.induction.placed_rows import PlacedRows, Updated, WrittenOut
from icllab.tasks import ItemLabel


@eqx.filter_jit
def drawn(position_dim, key):
    """A prompt of two pairs in four dimensions."""
    of_task, of_prompt = jax.random.split(key)
    task = ItemLabel.init(classes=None, labels=3, pairs=2, dim=4, position_dim=position_dim, key=of_task)
    return task.sample(key=of_prompt)


@pytest.mark.parametrize("position_dim", [8, pytest.param(5, marks=pytest.mark.slow)])
def test_rows_and_sums_of_them(position_dim, getkey):
    rng = np.random.default_rng(0)
    matrix, vectors = rng.normal(size=(position_dim + 4, 6)), rng.normal(size=(3, position_dim + 4))
    once, twice = rng.normal(size=(4, 5)), rng.normal(size=(2, 4))

    @jax.jit
    def everything(prompt):
        dense, rows = prompt.tokens(), PlacedRows.from_prompt(prompt)
        some = rows.mixed(jnp.asarray(once))
        again = PlacedRows.all_content(dense).mixed(jnp.asarray(once))
        all_rows = (rows, some, some.mixed(jnp.asarray(twice)), some.last(), rows.last(), again)
        products = [
            (each.written_out(), each.times(jnp.asarray(matrix)), each.against(jnp.asarray(vectors)))
            for each in all_rows
        ]
        return dense, products, rows.summed(jnp.asarray(once))

    with jax.enable_x64(True):
        dense, products, summed = jax.tree.map(np.asarray, everything(drawn(position_dim, getkey())))
    mixed = once @ dense
    for (rows, times, against), wanted in zip(
        products, (dense, mixed, twice @ mixed, mixed[-1:], dense[-1:], mixed), strict=True
    ):
        np.testing.assert_allclose(rows, wanted, atol=1e-13)
        np.testing.assert_allclose(times, wanted @ matrix, atol=1e-13)
        np.testing.assert_allclose(against, vectors @ wanted.T, atol=1e-13)
    np.testing.assert_allclose(summed, mixed, atol=1e-13)


def test_tokens_after_a_layer(getkey):
    rng = np.random.default_rng(0)
    pattern, value, vectors, weights = (rng.normal(size=size) for size in ((5, 5), (12, 12), (2, 12), (3, 5)))

    @jax.jit
    def both(prompt, pattern, value, vectors, weights):
        rows = PlacedRows.from_prompt(prompt)
        dense = rows.written_out()
        ways = Updated(rows, rows.mixed(pattern), value), WrittenOut(dense + pattern @ dense @ value)
        return [(way.against(vectors), way.summed(weights)) for way in ways]

    with jax.enable_x64(True):
        found, wanted = both(drawn(8, getkey()), pattern, value, vectors, weights)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
