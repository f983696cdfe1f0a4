"""A network under examination, its task, and facts that only its owner knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from icllab.core.errors import IclError, InputError, expected, require_integer
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.lab.networks import require_answers
from icllab.lab.subjects import digest
from icllab.models import Transformer, pretrained
from icllab.models.interventions.edits import unedited
from icllab.tasks import Text, WeightPool
from icllab.tasks.parsing import parse

Kind: TypeAlias = Literal["regression", "item labels", "tokens", "language model"]
POSITIONS = 64
_KINDS: dict[type, Kind] = {RegressionPrompt: "regression", ItemLabelPrompt: "item labels", TokenPrompt: "tokens"}


class Beginning(AbstractTask):
    """The first positions of the prompts of a task of tokens."""

    task: Any
    positions: int = eqx.field(static=True)

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One prompt."""
        return self.task.sample(key=key).alone(self.positions - 1, size=self.positions)

    def loss(self, prediction: Any, prompt: Any) -> Any:
        """The loss of the task."""
        return self.task.loss(prediction, prompt)


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
        tokenizer: Tokenizer of a language model; None if it is not known.
        broken: What the network raises on a prompt of the task; empty if it answers.
    """

    name: str
    network: Predictor
    task: Any
    trained_on: int | None = None
    checkpoints: Mapping[int, Predictor] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
    tokenizer: Any = None
    broken: str = ""

    @classmethod
    def of(
        cls,
        network: Predictor,
        task: AbstractTask,
        *,
        name: str = "the network",
        trained_on: int | None = None,
        checkpoints: Mapping[int, Predictor] | None = None,
        tokenizer: Any = None,
    ) -> "Subject":
        """Validate a network on a prompt of its task; what the network itself raises is kept.

        Raises:
            InputError: The network's answer has another shape, its input dimension is not that of the task, the prompts
                are of a kind without sections, or a number is out of range.
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
        subject = cls(name, network, task, trained_on, dict(checkpoints or {}), (), tokenizer)
        try:
            usable = validate_predictor(network, subject.contract_task, key=key, complaints=complaints)
        except InputError as error:
            if isinstance(error.__cause__, IclError | None):
                raise
            require_dimension(network, task)
            return replace(subject, broken=str(error).partition("\n")[0].removesuffix(", such as"))
        return replace(subject, network=usable, complaints=tuple(complaints))

    @property
    def kind(self) -> Kind:
        """Kind of the prompts; a language model is asked on windows of a text."""
        if isinstance(self.task, Text):
            return "language model"
        prompt = jax.eval_shape(lambda k: self.task.sample(key=k), jax.random.key(0))
        return next(kind for of, kind in _KINDS.items() if isinstance(prompt, of))

    @property
    def contract_task(self) -> Any:
        """The task; of a language model with windows of at most 64 positions, since all its logits are in memory."""
        if self.kind != "language model":
            return self.task
        return Beginning(self.task, min(self.task.tokens - 1, POSITIONS))

    @property
    def pool(self) -> bool:
        """True if the task draws from a finite pool of task vectors."""
        return isinstance(getattr(self.task, "weights", None), WeightPool)

    @property
    def digest(self) -> str:
        """SHA-256 of the network's numbers, with their shapes and types."""
        return digest(self.network)


def require_dimension(network: Any, task: Any) -> None:
    """Raise if a network that raises answers prompts of another input dimension."""
    try:
        require_answers(network, task)
    except InputError as error:
        if str(error).startswith("dim of the task"):
            raise


def task_and_tokenizer(text: Any, network: Any, name: Any) -> tuple[Any, Any]:
    """The task of a text, and the tokenizer of a language model; windows of a text are then in its tokens.

    The tokenizer is an attribute of the network, or lies beside the model in the folder or file ``name``.
    """
    words, tokenizer, model = (
        isinstance(text, str) and text.split(),
        getattr(network, "tokenizer", None),
        unedited(network),
    )
    if not words or words[0] != "text":
        return parse(text), tokenizer
    if (
        tokenizer is None
        and isinstance(model, Transformer)
        and isinstance(name, str | PathLike)
        and Path(name).exists()
    ):
        tokenizer = pretrained.tokenizer(name)
    if tokenizer is None:
        return parse(text), None
    arrangement: Any = getattr(getattr(model, "embedding", None), "arrangement", None)
    vocabulary = None if arrangement is None else arrangement.outputs or arrangement.vocabulary
    return parse(text, tokenizer=tokenizer, vocabulary=vocabulary), tokenizer
