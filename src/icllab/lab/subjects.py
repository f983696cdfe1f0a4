"""A user's network in the place of a claim's own.

A claim that speaks of a network declares its :class:`~icllab.lab.claim.Subject`. The name of a user's network travels
to the cells of a run, and each process opens the network once. A network that is an object of this process is measured
here.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from icllab.core.errors import InputError, expected, kind_of
from icllab.lab.claim import Claim

TOKENIZERS = "a folder of a language model, or file.py:name of an object with `model` and `tokenizer`"


class LanguageModel(NamedTuple):
    """A language model as claims take it: a :class:`~icllab.models.Transformer` of tokens, and its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Given:
    """A network, or the networks of a training run by step, with its task: names, or objects of this process.

    Attributes:
        network: Name of the network, as :func:`icllab.network` takes it; or a predictor, or step -> predictor.
        task: Task of its training, as text or as a task; None: the claim's own prompts.
        options: Arguments of :func:`icllab.network` and :func:`icllab.checkpoints`, in pairs.
        weights: SHA-256 of the numbers of the network.
        files: Name -> SHA-256 of the user's files that run, in pairs.
        steps: Steps of a training run, in rising order.
    """

    network: Any
    task: Any = None
    options: tuple[tuple[str, Any], ...] = ()
    weights: str = ""
    files: tuple[tuple[str, str], ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name in sentences and results."""
        named = dict(self.options).get("checkpoints") or self.network
        if isinstance(named, str):
            return named
        return kind_of(next(iter(named.values())) if isinstance(named, Mapping) else named)

    @property
    def is_named(self) -> bool:
        """True if names travel; False for objects, which stay in this process."""
        return all(isinstance(value, str | None) for value in (self.network, self.task))

    def configuration(self) -> dict[str, Any]:
        """The part of a store's configuration that names the network."""
        task = None if self.task is None else " ".join(str(self.task).split())
        steps = {"steps": list(self.steps)} if self.steps else {}
        return {"name": self.name, "task": task, "weights": self.weights, "files": dict(self.files), **steps}

    def arguments(self, kind: str, parameters: Set[str]) -> dict[str, Any]:
        """The arguments ``network`` and ``task`` of a ``measure`` with these parameters.

        Raises:
            InputError: The network has other weights than the run was asked for.
        """
        network, task = self.opened(kind)
        if self.weights and (found := digest(network)) != self.weights:
            raise expected(self.name, f"weights of the digest {self.weights[:12]}", found[:12], "they have changed")
        return {"network": network} | ({"task": task} if "task" in parameters else {})

    def opened(self, kind: str) -> tuple[Any, Any]:
        """The network and the task; names are opened once by a process."""
        opened = _opened_once if self.is_named else _opened
        return opened(self.network, self.task, self.options, kind)


def stated(configuration: Mapping[str, Any]) -> Given:
    """The network that a store's configuration names, which is not opened."""
    files = tuple(dict(configuration.get("files", {})).items())
    steps = tuple(configuration.get("steps", ()))
    return Given(configuration["name"], configuration["task"], (), configuration["weights"], files, steps)


def given(
    claim: Claim, network: Any, task: Any = None, options: Mapping[str, Any] | None = None, folder: Any = None
) -> Given:
    """A user's network for a claim, opened, of the kind that the claim speaks of, and with the digest of its weights.

    Raises:
        InputError: The claim speaks of no network that can be replaced; or the network is of another kind, or the task.
    """
    from icllab.lab import registry

    subject = claim.subject
    if subject is None:
        raise expected("--network", f"a claim that speaks of one network, which {claim.name} does not", claim.name)
    named = tuple(sorted((name, value) for name, value in (options or {}).items() if value is not None))
    request = Given(network if network is None or not isinstance(network, Path) else str(network), task, named)
    has_run = isinstance(network, Mapping) or "checkpoints" in dict(named)
    if subject.run != has_run:
        way = "--checkpoints 'run/*.pt' --load file.py:load" if subject.run else "--network NETWORK"
        raise expected(claim.name, subject.meaning, "a training run" if has_run else "one network", way)
    if task is not None and "task" not in registry.parameters(claim, folder):
        raise expected("--task", f"none, since {claim.name} asks prompts of its own", task, "--set changes them")
    _opened_once.cache_clear()  # files may have changed
    opened, law = request.opened(subject.kind)
    _require_kind(claim, opened, law)
    steps = tuple(opened) if subject.run else ()
    return dataclasses.replace(request, weights=digest(opened), files=tuple(_files(request)), steps=steps)


def _require_kind(claim: Claim, network: Any, task: Any) -> None:
    """Raise unless the network, and the task if there is one, are of the claim's kind."""
    import jax

    from icllab.lab.networks import require_answers

    subject = claim.subject
    assert subject is not None
    first = next(iter(network.values())) if subject.run else network
    if task is None or subject.kind == "language model":
        return
    prompt = jax.eval_shape(lambda key: task.sample(key=key), jax.random.key(0))
    if (found := prompt_kind(prompt)) != subject.kind:
        raise expected(f"task of {claim.name}", f"a task of {subject.kind}", f"one of {found}")
    require_answers(first, task)


def prompt_kind(prompt: Any) -> str:
    """The kind of a prompt, as subjects name it."""
    from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt

    kinds = {RegressionPrompt: "regression", ItemLabelPrompt: "item labels", TokenPrompt: "tokens"}
    return next((kind for of, kind in kinds.items() if isinstance(prompt, of)), type(prompt).__name__)


def _opened(network: Any, task: Any, pairs: tuple[tuple[str, Any], ...], kind: str) -> tuple[Any, Any]:
    """Open the network of a kind, or the networks of a run by step, and the task."""
    from icllab.lab import networks
    from icllab.tasks.parsing import parse

    options, law = dict(pairs), None if task is None else parse(task)
    if kind == "language model":
        return _language_model(network), law
    if "checkpoints" in options:
        run = networks.checkpoints(options["checkpoints"], options["load"])
    elif isinstance(network, Mapping):
        run = {int(step): networks.network(network[step]) for step in sorted(network)}
    else:
        names = {name: options.get(name) for name in ("store", "family", "heads")}
        return networks.network(network, **names), law
    return run, law


_opened_once = functools.lru_cache(maxsize=2)(_opened)


def _language_model(source: Any) -> LanguageModel:
    """The model and the tokenizer of a folder, or of an object that has both."""
    from icllab.core.user_files import named
    from icllab.models import Transformer, pretrained

    value = source
    if isinstance(source, str):
        if Path(source).exists():
            return LanguageModel(pretrained.load(source), pretrained.tokenizer(source))
        if ":" not in source:
            raise expected("--network", TOKENIZERS, source)
        value = named(source)[1]
        value = value() if callable(value) and not hasattr(value, "model") else value
    model, tokenizer = getattr(value, "model", None), getattr(value, "tokenizer", None)
    if not isinstance(model, Transformer) or tokenizer is None:
        raise expected("network", f"a language model: {TOKENIZERS}", kind_of(value))
    return LanguageModel(model, tokenizer)


def _files(request: Given) -> Iterable[tuple[str, str]]:
    """Name and SHA-256 of each file of the user that runs."""
    texts = [request.network, request.task and str(request.task).split()[0], dict(request.options).get("load")]
    paths = [Path(text.rpartition(":")[0]) for text in texts if isinstance(text, str)]
    return sorted({path.name: file_digest(path) for path in paths if path.suffix == ".py" and path.is_file()}.items())


def slug(name: str) -> str:
    """The name of a network as a part of a path."""
    return re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-")[-60:]


def digest(network: Any) -> str:
    """SHA-256 of the arrays of a network, of a run by step, or of the state of a PyTorch module that it wraps."""
    import numpy as np

    total = hashlib.sha256()
    for part in _arrays(network):
        values = np.ascontiguousarray(part)
        total.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
    return total.hexdigest()


def _arrays(network: Any) -> Iterable[Any]:
    """Arrays of a network in a fixed order."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(network, Mapping):
        for step in sorted(network):
            yield np.asarray(step)
            yield from _arrays(network[step])
        return
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


def require_here(request: Given, others: bool) -> None:
    """Raise if a network that is an object would have to travel to another process."""
    if others and not request.is_named:
        wish = "a name such as file.py:net, which other processes can open"
        raise InputError(f"network: expected {wish}, got {request.name}, an object of this process")
