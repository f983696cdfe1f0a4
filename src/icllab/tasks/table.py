r"""Prompts from a real table: some of its rows are the examples, one more is the query.

The table is fixed and the prompts are random: rows are drawn without replacement, anew for each prompt.
Values are shown as they stand in the table. A predictor that needs them scaled is wrapped in
:class:`~icllab.tasks.scaling.Standardised`, which scales with the examples before the query alone.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import table_files
from icllab.tasks.regression import AbstractRegression
from icllab.tasks.table_files import Chosen, Columns, Place


class Table(AbstractRegression):
    r"""Prompts of ``length`` example rows and a query row; the loss is relative to the target's variance.

    .. math:: \mathrm{loss} = \frac{(\hat y - y)^2}{\mathrm{Var}(y)}

    with the variance of the target over the whole table, divided by the number of rows. It is a unit for
    the loss, and no predictor sees it: always answering the table's mean has the loss 1 on average, and 1
    minus a mean loss is a share of explained variance.

    Attributes:
        x: Inputs, one row per row of the table, in the table's units.
        y: Target, in the table's units.
        unit: What squared errors are divided by.
        length: Example rows before the query (static); a prompt has ``length + 1`` positions.
        columns: Names of the inputs (static).
        target: Name of the target (static).

    Derived: docs/tables.md, The unit of the loss.
    """

    x: Float[Array, "row column"]
    y: Float[Array, " row"]
    unit: Float[Array, ""]
    length: int = eqx.field(static=True)
    columns: tuple[str, ...] = eqx.field(static=True)
    target: str = eqx.field(static=True)

    def __init__(
        self,
        x: Float[Array | np.ndarray, "row column"] | Int[np.ndarray, "row column"],
        y: Float[Array | np.ndarray, " row"] | Int[np.ndarray, " row"],
        *,
        length: int,
        columns: Sequence[str] | None = None,
        target: str = "y",
    ) -> None:
        """From arrays; values are held in JAX's default floating-point type.

        Values are finite and none is masked, the target is not constant, no variance underflows, the columns have
        different names, and ``length`` is at least 0 and less than the number of rows: else there is an ``InputError``.
        The columns are called ``x0``, ``x1``, ... by default.
        """
        require_integer("length", length, least=0)
        for name, values, axes in (("x", x, 2), ("y", y, 1)):
            if np.ma.is_masked(values):
                raise expected(name, "numbers", "a masked array", "fill or drop what is missing first")
            array = np.asarray(values)
            if array.ndim != axes or array.dtype.kind not in "fiu":
                came = f"{array.dtype.name} of shape {array.shape}"
                raise expected(name, f"real numbers with {axes} {'axes' if axes > 1 else 'axis'}", came)
        inputs, targets = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if len(inputs) != len(targets):
            raise expected("x and y", "as many rows in both", f"{len(inputs)} and {len(targets)}")
        self.columns = tuple(f"x{i}" for i in range(inputs.shape[1])) if columns is None else tuple(columns)
        self.target, self.length = target, length
        if len(self.columns) != inputs.shape[1] or not self.columns:
            raise expected("columns", f"one name for each of {inputs.shape[1]} columns, at least one", self.columns)
        if len(set(self.columns)) < len(self.columns):
            raise expected("columns", "names that differ", self.columns)
        if not length < len(targets):
            raise expected("length", f"an integer from 0 to {len(targets) - 1}, one less than there are rows", length)
        limits = jnp.finfo(jnp.zeros(()).dtype)
        largest = float(np.sqrt(limits.max))  # their squares must be finite
        for name, column in zip((*self.columns, target), (*inputs.T, targets), strict=True):
            table_files.require_finite("table", name, column)
            if np.abs(column).max() > largest:
                raise expected(f"table, column {name!r}", f"numbers up to {largest:.3g}", float(np.abs(column).max()))
            if np.ptp(column) > 0 and column.var() < limits.tiny:
                requirement = f"equal numbers, or a variance of at least {limits.tiny:.3g}"
                raise expected(f"table, column {name!r}", requirement, float(column.var()), "give it in another unit")
        if not np.ptp(targets) > 0:
            raise expected(f"target {target!r}", "values that differ between rows", float(targets[0]))
        self.x, self.y, self.unit = (jnp.asarray(a) for a in (inputs, targets, targets.var()))

    @classmethod
    def from_csv(
        cls, path: Place, *, target: str | int, length: int, columns: Chosen = None, delimiter: str = ","
    ) -> "Table":
        """From a file of comma-separated values whose first line has the names; needs pyarrow.

        Args:
            path: The file.
            target: The column to predict, by name or index (from 0; -1 is the last).
            length: Examples before the query.
            columns: The inputs, by name or index; by default all columns but the target.
            delimiter: What separates the values.

        Raises:
            InputError: No such file or column, or a chosen column that has text or a missing value; column and
                row are named (rows count from 1, without the header).
            EnvironmentFault: pyarrow is not installed.
        """
        return cls._chosen(table_files.read_csv(path, delimiter), path, target, length, columns)

    @classmethod
    def from_parquet(cls, path: Place, *, target: str | int, length: int, columns: Chosen = None) -> "Table":
        """From a Parquet file; needs pyarrow. Arguments and errors are those of :meth:`from_csv`."""
        return cls._chosen(table_files.read_parquet(path), path, target, length, columns)

    @classmethod
    def _chosen(cls, file: Columns, path: Place, target: str | int, length: int, columns: Chosen) -> "Table":
        names, goal = table_files.choice(file, path, target, columns)
        numbers = {name: table_files.numbers(file, path, name) for name in (*names, goal)}
        x = np.stack([numbers[name] for name in names], axis=1)
        return cls(x, numbers[goal], length=length, columns=names, target=goal)

    @property
    def dim(self) -> int:
        """Number of input columns."""
        return self.x.shape[1]

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return self.x.shape[0]

    def shuffled(self, *, key: PRNGKeyArray) -> "Table":
        """The same table with the targets permuted among its rows: inputs then say nothing of them."""
        require_key(key)
        return eqx.tree_at(lambda table: table.y, self, jax.random.permutation(key, self.y))

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` distinct rows, every ordered choice equally likely."""
        require_key(key)
        rows = distinct_rows(self.rows, self.length + 1, key=key)
        return RegressionPrompt(x=self.x[rows], y=self.y[rows])

    def loss(self, prediction: Array, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        r"""Squared error over the target's variance, at the positions answered (every, or the last)."""
        return super().loss(prediction, prompt) / self.unit


def distinct_rows(rows: int, count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    r"""``count`` distinct numbers below ``rows``, every ordered choice equally likely.

    .. math:: p_j = j + t_j, \quad t_j \sim \mathrm{U}\{0, \dots, \mathtt{rows} - j - 1\}, \qquad
              a_j \leftrightarrow a_{p_j}, \qquad j = 0, \dots, \mathtt{count} - 1

    is how cards are shuffled, stopped after ``count`` of them. Only places that were swapped are kept, so the cost is
    :math:`O(\mathtt{count}^2)`, however long the table. Each draw is 32 random bits modulo its range, even to
    within ``rows`` / 2^32.

    Derived: docs/tables.md, Drawing rows.
    """
    ranges = jnp.arange(rows, rows - count, -1, dtype=jnp.uint32)
    return dealt((jax.random.bits(key, (count,), "uint32") % ranges).astype(jnp.int32))


def dealt(draws: Int[Array, " count"]) -> Int[Array, " count"]:
    """The first cards of a pack 0, 1, 2, ... in which card j is swapped with card ``j + draws[j]``, each j in turn."""
    steps = jnp.arange(draws.shape[0], dtype=jnp.int32)

    def deal(state: tuple[Array, Array], j: Int[Array, ""]) -> tuple[tuple[Array, Array], Int[Array, ""]]:
        places, cards = state

        def card_at(place: Int[Array, ""]) -> Int[Array, ""]:
            latest = jnp.max(jnp.where(places == place, steps, -1))
            return jnp.where(latest < 0, place, cards[latest])

        partner = j + draws[j]
        return (places.at[j].set(partner), cards.at[j].set(card_at(j))), card_at(partner)

    nowhere = jnp.full_like(steps, -1)
    return jax.lax.scan(deal, (nowhere, nowhere), steps)[1]
