"""A network under examination, its task, and facts that only its owner knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import jax

from icllab.core.errors import expected, require_integer
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.lab.subjects import digest
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
