r"""Prompts from a real table: some of its rows are the examples, one more is the query.

The table is fixed and the prompts are random: rows are drawn without replacement, anew for each prompt.
Values are shown as they stand in the table, unless JAX's numbers would lose their differences: see :class:`Table`. A
predictor that needs them scaled is wrapped in :class:`~icllab.tasks.scaling.Standardised`, which scales with the
examples before the query alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

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

    A column is shown as it stands, unless JAX's floating-point type would lose its differences or its squares: then
    ``(value - zero) / scale`` is shown, computed in float64. The zero is near the mean where the distance of the values
    from 0 is more than 1024 standard deviations in float32 (Unix time), and 0 elsewhere; the scale is the power of two
    near the standard deviation where values or deviations leave the range from 2^-48 to 2^48 in float32, and 1
    elsewhere. Losses do not depend on either; :meth:`restored` takes answers back to the units of the data.

    Attributes:
        x: Inputs as they are shown, one row per row of the table.
        y: Target as it is shown.
        unit: What squared errors are divided by.
        length: Example rows before the query (static); a prompt has ``length + 1`` positions.
        columns: Names of the inputs (static); by default ``x0``, ``x1``, ...
        target: Name of the target (static); by default it has none.
        zeros: Zero of every input and, last, of the target (static).
        scales: Likewise, their scales (static).

    Derived: docs/tables.md, The unit of the loss.
    """

    x: Float[Array, "row column"]
    y: Float[Array, " row"]
    unit: Float[Array, ""]
    length: int = eqx.field(static=True)
    columns: tuple[str, ...] = eqx.field(static=True)
    target: str = eqx.field(static=True)
    zeros: tuple[float, ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        length: int,
        columns: Sequence[str] | None = None,
        target: str | None = None,
    ) -> None:
        """Build a table from arrays of real numbers [row, column] and [row], or a DataFrame and a Series.

        Values are held in JAX's default floating-point type.

        Values are finite and none is masked, integers are those that float64 holds, the type of the arrays resolves
        half the standard deviation of each column, the target is not constant, the columns have different names, and
        ``length`` is at least 0 and less than the number of rows: else there is an ``InputError``. By default the
        columns and the target have the names of a DataFrame and of a Series, and else ``x0``, ``x1``, ... and ``y``.
        """
        require_integer("length", length, least=0)
        for name, values, axes in (("x", x, 2), ("y", y, 1)):
            if np.ma.is_masked(values):
                raise expected(name, "numbers", "a masked array", "fill or drop missing values first")
            array = np.asarray(values)
            real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
            if array.ndim != axes or not real:
                actual = f"{array.dtype.name} of shape {array.shape}"
                raise expected(name, f"real numbers with {axes} {'axes' if axes > 1 else 'axis'}", actual)
        inputs, targets = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if not len(inputs):
            raise expected("x", "at least two rows", f"an array of shape {inputs.shape}")
        if len(inputs) != len(targets):
            raise expected("x and y", "equal numbers of rows", f"{len(inputs)} and {len(targets)}")
        if isinstance(columns, str) or not isinstance(columns, Iterable | None):
            raise expected("columns", "a sequence of names", columns)
        numbered = [f"x{i}" for i in range(inputs.shape[1])]
        # A DataFrame knows its columns, and a Series its name: pandas is not needed to ask for them.
        names = getattr(x, "columns", numbered) if columns is None else columns
        self.columns, self.length = tuple(map(str, names)), length
        self.target = str(target if target is not None else "y" if getattr(y, "name", None) is None else y.name)
        if len(self.columns) != inputs.shape[1] or not self.columns:
            raise expected("columns", f"one name for each of {inputs.shape[1]} columns, at least one", self.columns)
        if len(set(self.columns)) < len(self.columns):
            raise expected("columns", "names that differ", self.columns)
        if not length < len(targets):
            raise expected("length", f"an integer from 0 to {len(targets) - 1}, one less than there are rows", length)
        for name, column, values in zip(
            (*self.columns, self.target), (*inputs.T, targets), (*np.asarray(x).T, y), strict=True
        ):
            table_files.require_finite("table", name, column)
            _require_resolved(f"table, column {name!r}", column, np.asarray(values))
        if not targets.max() > targets.min():
            raise expected(f"target {self.target!r}", "values that differ between rows", float(targets[0]))
        self.zeros, self.scales = zip(*map(_place, (*inputs.T, targets)), strict=True)
        inputs = (inputs - self.zeros[:-1]) / self.scales[:-1]
        targets = (targets - self.zeros[-1]) / self.scales[-1]
        self.x, self.y, self.unit = (jnp.asarray(a) for a in (inputs, targets, targets.var()))

    @classmethod
    def from_csv(
        cls,
        path: Place,
        *,
        target: str | int,
        length: int,
        columns: Chosen = None,
        delimiter: str = ",",
        decimal: str = ".",
        comment: str | None = None,
        encoding: str = "utf-8",
    ) -> "Table":
        """Read a file of comma-separated values whose first line has the names.

        Args:
            path: The file.
            target: The column to predict, by name or index (from 0; -1 is the last).
            length: Examples before the query.
            columns: The inputs, by name or index; by default all columns but the target and those that number or name
                the rows: a column without a name, and ``index`` or ``rownames`` if it counts the rows.
            delimiter: What separates the values.
            decimal: What stands before the decimals: ``","`` in many countries.
            comment: What begins a comment, which is left out; None: nothing does.
            encoding: Encoding of the file.

        Raises:
            InputError: No such file or column, text of another encoding, or a chosen column that has text, a missing
                value or an integer that float64 rounds; column and row are named (rows count from 1, without the
                header).
        """
        file = table_files.read_csv(path, delimiter, decimal=decimal, comment=comment, encoding=encoding)
        return cls._chosen(file, path, target, length, columns)

    @classmethod
    def from_parquet(cls, path: Place, *, target: str | int, length: int, columns: Chosen = None) -> "Table":
        """Read a Parquet file, whose pandas index is not an input; needs pyarrow.

        Arguments are those of :meth:`from_csv`, and so are errors; without pyarrow, there is an ``EnvironmentFault``.
        """
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
        """The same table with the targets permuted among its rows, so that inputs say nothing about them."""
        require_key(key)
        return eqx.tree_at(lambda table: table.y, self, jax.random.permutation(key, self.y))

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` distinct rows; every ordered choice is equally likely."""
        require_key(key)
        rows = distinct_rows(self.rows, self.length + 1, key=key)
        return RegressionPrompt(x=self.x[rows], y=self.y[rows])

    def loss(self, prediction: Array, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """Squared error divided by the target's variance, at the positions answered (every, or the last)."""
        return super().loss(prediction, prompt) / self.unit

    def restored(self, prediction: Float[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Convert answers to prompts of this table to the units of the data, in float64."""
        return np.asarray(prediction, np.float64) * self.scales[-1] + self.zeros[-1]


def _require_resolved(name: str, column: Float[np.ndarray, " row"], values: np.ndarray) -> None:
    """Raise if float64 cannot hold the integers ``values``, or the type of real ``values`` cannot resolve them."""
    if jnp.issubdtype(values.dtype, jnp.integer):
        # Compared as Python compares integers and floats: exactly.
        largest = max(values.tolist(), key=abs)
        if abs(largest) > 2**53 and any(int(c) != v for c, v in zip(column.tolist(), values.tolist(), strict=True)):
            raise expected(name, "integers up to 2^53", largest, "subtract a constant or give it in another unit")
        return
    step = float(np.abs(column).max()) * float(jnp.finfo(values.dtype).eps)
    if column.max() > column.min() and step > _deviation(column) / 2:
        kind = f"numbers that differ in {values.dtype.name}"
        raise expected(name, kind, f"steps of {step:.3g}", "subtract a constant before they are rounded")


def _place(column: Float[np.ndarray, " row"]) -> tuple[float, float]:
    """Offset and scale of a column, so that JAX's numbers hold its differences and its squares."""
    limits = jnp.finfo(jnp.zeros(()).dtype)
    spread, largest, zero, scale = _deviation(column), float(np.abs(column).max()), 0.0, 1.0
    if spread > 0 and largest > spread * 2.0 ** (limits.nmant - 13):
        step = 2.0 ** np.ceil(np.log2(spread))
        zero = float(np.round(np.mean(column / step)) * step)
        largest = float(np.abs(column - zero).max())
    if largest > 2.0 ** (3 * limits.maxexp // 8) or 0 < (spread or largest) < 2.0 ** (-3 * limits.maxexp // 8):
        scale = float(2.0 ** np.round(np.log2(spread or largest)))
    return zero, scale


def _deviation(column: Float[np.ndarray, " row"]) -> float:
    """Standard deviation of a column, in any unit: squares neither overflow nor underflow."""
    largest = float(np.abs(column).max())
    return largest * float((column / largest).std()) if column.max() > column.min() else 0.0


def distinct_rows(rows: int, count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    r"""Draw ``count`` distinct numbers below ``rows``; every ordered choice is equally likely.

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
    """The first cards of a pack 0, 1, 2, ... after card j is swapped with card ``j + draws[j]``, for each j in turn."""
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
