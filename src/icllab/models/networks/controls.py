"""Controls without attention, for the same prompts and with the same interface.

:class:`PromptPerceptron` sees the whole prompt as one vector, :class:`Recurrent` reads it example by example, and
:class:`DeepSets` adds up what it makes of each example. Compare them at equal numbers of parameters:
:func:`~icllab.models.networks.parameters.width_for`.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key, unknown
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.dense import Perceptron, product, require_widths


class PromptPerceptron(AbstractModel):
    r"""Dense layers on the whole flattened prompt, for contexts of one length only.

    .. math:: \hat y_i = F\big( m_{i1} x_1, m_{i1} y_1, \dots, m_{i\ell} x_\ell, m_{i\ell} y_\ell,\; x_i,\; m_i \big)

    with :math:`m_{ij} = 1` for examples before position i and 0 for later ones. A model that answers the last
    position only has no :math:`m_i` among its inputs. Activations: ``input``, ``hidden0``, ..., ``prediction``.

    Attributes:
        layers: F.
        length: Examples before the last query.
        answers: ``"every"`` position or the ``"last"`` only.
    """

    layers: Perceptron
    length: int = eqx.field(static=True)
    answers: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        dim: int,
        length: int,
        hidden: tuple[int, ...],
        answers: str,
        nonlinearity: str | Callable[[Array], Array] = "relu",
        key: PRNGKeyArray,
    ):
        if answers not in ("every", "last"):
            raise unknown("answers", answers, ("every", "last"))
        require_integer("dim", dim)
        require_integer("length", length, least=0)
        inputs = length * (dim + 1) + dim + (length if answers == "every" else 0)
        self.layers = Perceptron(inputs, hidden, 1, nonlinearity=nonlinearity, key=key)
        self.length = length
        self.answers = answers

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``answers``."""
        return "every" if self.answers == "every" else "last"

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        if prompt.length != self.length:
            raise expected("prompt", f"{self.length} examples before the query", prompt.length)
        record = Recorder(edit)
        examples = jnp.concatenate([prompt.x[:-1], prompt.y[:-1, None]], axis=1)
        if self.answers == "last":
            inputs = jnp.concatenate([examples.reshape(-1), prompt.x[-1]])[None]
        else:
            before = np.tril(np.ones((prompt.positions, self.length), bool), -1)
            shape = (*before.shape, examples.shape[1])
            contexts = jnp.where(jnp.broadcast_to(before[:, :, None], shape), jnp.broadcast_to(examples, shape), 0)
            flat = contexts.reshape(prompt.positions, -1)
            inputs = jnp.concatenate([flat, prompt.x, jnp.asarray(before, prompt.x.dtype)], axis=1)
        out = self.layers(record("input", inputs), record)
        return Trace(record("prediction", out[:, 0]), record.activations)


class Recurrent(AbstractModel):
    r"""A gated recurrent network that receives each label with the next input.

    .. math:: h_i = \mathrm{GRU}\big( h_{i-1}, (x_i, y_{i-1}) \big), \qquad \hat y_i = F(h_i),
              \qquad h_{-1} = 0,\; y_{-1} = 0

    Activations: ``input`` [position, dim + 1], ``states`` [position, width], ``hidden0``, ..., ``prediction``. An
    edit of ``states`` changes what is read from them, not the states that follow.

    Attributes:
        cell: The weights of the recurrence.
        readout: F.

    Source: the use of labels one step later [Hochreiter01].
    """

    cell: eqx.nn.GRUCell
    readout: Perceptron

    def __init__(
        self,
        *,
        dim: int,
        width: int,
        hidden: tuple[int, ...] = (),
        nonlinearity: str | Callable[[Array], Array] = "relu",
        key: PRNGKeyArray,
    ):
        """Draw the weights.

        Args:
            dim: Dimension of inputs.
            width: Width of the state.
            hidden: Widths of the hidden layers of F; none by default.
            nonlinearity: That of F, by name or as a function.
            key: Key of the weights.
        """
        require_integer("dim", dim)
        require_integer("width", width)
        require_widths("hidden", hidden)
        require_key(key)
        of_cell, of_readout = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(dim + 1, width, key=of_cell)
        self.readout = Perceptron(width, hidden, 1, nonlinearity=nonlinearity, key=of_readout)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        labels = jnp.pad(prompt.y[:-1], (1, 0))
        states = self._states(record("input", jnp.concatenate([prompt.x, labels[:, None]], axis=1)))
        out = self.readout(record("states", states), record)
        return Trace(record("prediction", out[:, 0]), record.activations)

    def _states(self, inputs: Float[Array, "position input"]) -> Float[Array, "position width"]:
        """The states along the prompt; the gates' products with the inputs are computed together beforehand."""
        cell = self.cell
        bias, bias_n = cell.bias, cell.bias_n
        assert bias is not None  # a cell of this model has both
        assert bias_n is not None
        driven = product(inputs, cell.weight_ih.T)
        driven = driven + jnp.broadcast_to(bias, driven.shape)

        def step(state: Array, ahead: Array) -> tuple[Array, Array]:
            reset, update, new = jnp.split(ahead, 3)
            of_reset, of_update, of_new = jnp.split(product(state[None], cell.weight_hh.T)[0], 3)
            candidate = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * (of_new + bias_n))
            state = candidate + jax.nn.sigmoid(update + of_update) * (state - candidate)
            return state, state

        return jax.lax.scan(step, jnp.zeros(cell.hidden_size, inputs.dtype), driven)[1]


class DeepSets(AbstractModel):
    r"""A sum over features of the examples, which does not depend on their order.

    .. math:: \hat y_i = F\Big( \frac{1}{n_i} \sum_{j < i} \phi(x_j, y_j),\; x_i \Big)

    with :math:`n_i = 1` (``pool="sum"``) or :math:`n_i = \max(i, 1)` (``"mean"``). Activations: ``examples``
    (:math:`\phi`) and ``pooled``, each after the hidden layers before it, ``features.hidden0``, ...,
    ``readout.hidden0``, ..., ``prediction``.

    Attributes:
        features: :math:`\phi`.
        readout: F.
        pool: ``"sum"`` or ``"mean"``.

    Source: [Zaheer17].
    """

    features: Perceptron
    readout: Perceptron
    pool: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        dim: int,
        width: int,
        hidden: tuple[int, ...],
        pool: str,
        nonlinearity: str | Callable[[Array], Array] = "relu",
        key: PRNGKeyArray,
    ):
        if pool not in ("sum", "mean"):
            raise unknown("pool", pool, ("sum", "mean"))
        require_integer("dim", dim)
        require_integer("width", width)
        require_widths("hidden", hidden)
        require_key(key)
        of_features, of_readout = jax.random.split(key)
        self.features = Perceptron(dim + 1, hidden, width, nonlinearity=nonlinearity, key=of_features)
        self.readout = Perceptron(width + dim, hidden, 1, nonlinearity=nonlinearity, key=of_readout)
        self.pool = pool

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        examples = jnp.concatenate([prompt.x[:-1], prompt.y[:-1, None]], axis=1)
        features = record("examples", self.features(examples, record.within("features")))
        sums = jnp.pad(jnp.cumsum(features, axis=0), ((1, 0), (0, 0)))
        if self.pool == "mean":
            count = jnp.maximum(jnp.arange(prompt.positions), 1).astype(sums.dtype)
            sums = sums / count[:, None]
        sums = record("pooled", sums)
        out = self.readout(jnp.concatenate([sums, prompt.x], axis=1), record.within("readout"))
        return Trace(record("prediction", out[:, 0]), record.activations)
