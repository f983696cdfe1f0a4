"""A network that was written by hand, with names for its activations."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
from jaxtyping import Array

from icllab.core.errors import expected, kind_of, require_instance
from icllab.core.protocols import AbstractModel, Edit, Trace, answer_single, declared
from icllab.models.networks.embedding import AbstractArrangement


class WithActivations(AbstractModel):
    """A predictor as a model: a function of the user's gives its activations by name.

    Measures of heads, ablations and edits apply to the names that networks of the library have:
    ``block0.attention.pattern`` [head, token, key] and ``block0.attention.heads`` [token, head, dim], or
    ``attention1`` [token, key] and ``attention2`` of item-label networks.

    Attributes:
        network: Function of a prompt, such as an Equinox module.
        activations: Function ``(network, prompt)`` that returns arrays by name. For ablations and edits it is a
            function ``(network, prompt, edit)``: it passes each activation through ``edit(name, value)``, goes on with
            the value that this returns, and returns the answers as ``"prediction"`` among the arrays.
        arrangement: :class:`~icllab.models.networks.embedding.Interleaved` or ``Joined``, if the network has more
            tokens than positions: it says the token before each token, for scores of heads.

    Raises:
        InputError: An argument is of another kind; or, in a trace, an edit is given to a function without ``edit``, or
            the function does not return arrays by name.
    """

    heads_in_trace: ClassVar[bool] = True  # how many heads there are is known when it runs
    network: Callable[[Any], Array]
    activations: Callable[..., Mapping[str, Array]]
    arrangement: AbstractArrangement | None = None

    def __check_init__(self) -> None:
        if not callable(self.network) or isinstance(self.network, type):
            raise expected("network", "a function of a prompt", kind_of(self.network))
        if not callable(self.activations):
            raise expected("activations", "a function of a network and a prompt", kind_of(self.activations))
        if self.arrangement is not None:
            require_instance("arrangement", self.arrangement, AbstractArrangement, "one such as Interleaved(), or None")

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the network: "every" or "last"."""
        return declared(self.network, "positions")

    @property
    def traceable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the network."""
        return declared(self.network, "traceable")

    @property
    def differentiable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the network."""
        return declared(self.network, "differentiable")

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """The network's answer, and the activations that the function returns."""
        editable = "edit" in inspect.signature(self.activations).parameters
        if edit is not None and not editable:
            hint = "it passes each activation through edit(name, value), goes on with the result, returns 'prediction'"
            raise expected("activations", "a function (network, prompt, edit) for interventions", "no edit", hint)
        arguments = (edit or (lambda _, value: value),) if editable else ()
        values = self.activations(self.network, prompt, *arguments)
        if not isinstance(values, Mapping) or not all(map(eqx.is_array_like, values.values())):
            raise expected("activations", "a function that returns arrays by name", kind_of(values))
        if edit is None:
            return Trace(answer_single(self.network, prompt), dict(values))
        if "prediction" not in values:
            raise expected("activations", "'prediction' among the arrays, for interventions", list(values))
        return Trace(values["prediction"], dict(values))
