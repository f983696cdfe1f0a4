"""A network under examination, its task, and facts that only its owner knows."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import expected, require_integer
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.tasks import WeightPool

Kind: TypeAlias = Literal["regression", "item labels", "tokens"]
_KINDS: dict[type, Kind] = {RegressionPrompt: "regression", ItemLabelPrompt: "item labels", TokenPrompt: "tokens"}


@dataclass(frozen=True)
class Subject:
    """A network under examination.

    Attributes:
        name: Name of the network in sentences and reports.
        network: Predictor of one prompt, validated.
        task: Task on which it is asked: that of its training.
        trained_on: Number of training prompts; None if it is not known.
        checkpoints: Step -> network, in rising order; empty if there are none.
        complaints: Warnings of the validation.
    """

    name: str
    network: Predictor
    task: Any
    trained_on: int | None = None
    checkpoints: Mapping[int, Predictor] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        network: Predictor,
        task: AbstractTask,
        *,
        name: str = "the network",
        trained_on: int | None = None,
        checkpoints: Mapping[int, Predictor] | None = None,
    ) -> "Subject":
        """Validate a network on a prompt of its task.

        Raises:
            InputError: The network cannot answer a prompt of the task, the prompts are of a kind without sections, or
                a number is out of range.
        """
        require_task(task)
        if trained_on is not None:
            require_integer("trained_on", trained_on)
        key = jax.random.key(0)
        prompt = jax.eval_shape(lambda k: task.sample(key=k), key)
        if not isinstance(prompt, tuple(_KINDS)):
            kinds = ", ".join(kind.__name__ for kind in _KINDS)
            raise expected("task", f"prompts of one of the kinds {kinds}", type(prompt).__name__)
        complaints: list[str] = []
        usable = validate_predictor(network, task, key=key, complaints=complaints)
        return cls(name, usable, task, trained_on, dict(checkpoints or {}), tuple(complaints))

    @property
    def kind(self) -> Kind:
        """Kind of the prompts."""
        prompt = jax.eval_shape(lambda k: self.task.sample(key=k), jax.random.key(0))
        return next(kind for of, kind in _KINDS.items() if isinstance(prompt, of))

    @property
    def pool(self) -> bool:
        """True if the task draws from a finite pool of task vectors."""
        return isinstance(getattr(self.task, "weights", None), WeightPool)

    @property
    def digest(self) -> str:
        """SHA-256 of the network's numbers, with their shapes and types."""
        return digest(self.network)


def digest(network: Any) -> str:
    """SHA-256 of the arrays of a network of JAX, or of the state of a PyTorch module that it wraps."""
    total = hashlib.sha256()
    for part in _arrays(network):
        values = np.ascontiguousarray(part)
        total.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
    return total.hexdigest()


def _arrays(network: Any) -> Iterable[np.ndarray]:
    """Arrays of a network in a fixed order."""
    module = getattr(network, "module", None)
    if module is not None and hasattr(module, "state_dict"):
        for tensor in module.state_dict().values():
            tensor = tensor.detach().cpu()
            yield np.asarray(tensor.float() if tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor)
    for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array)):
        yield np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def file_digest(path: Path) -> str:
    """SHA-256 of a user's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
