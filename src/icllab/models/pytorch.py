"""A PyTorch module as a predictor. PyTorch is imported when the predictor is called."""

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.errors import IclError, InputError, expected, kind_of, require_flag, require_instance, require_integer
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.networks.embedding import AbstractArrangement
from icllab.models.torch_attention import torch_trace

_SEQUENCES = {RegressionPrompt: "y", TokenPrompt: "tokens", ItemLabelPrompt: "labels"}  # one number for each position
_SHAPES = 6  # of tensors in an error
_ONE_CALL = threading.RLock()  # JAX calls back from several threads, and a module has one mode
LAYOUTS = (
    "  # tokens (x_1, 0), (0, y_1), (x_2, 0), ..., of which those of x are answered; F is torch.nn.functional",
    "  models.FromTorch(module, lambda p: torch.stack([F.pad(p.x, (0, 1)), F.pad(p.y[..., None], (p.dim, 0))], 2)"
    ".flatten(1, 2), lambda a: a[:, 0::2])",
    "  # tokens (x_i, y_{i-1}), all of which are answered",
    "  models.FromTorch(module, lambda p: torch.cat([p.x, F.pad(p.y, (1, 0))[:, :-1, None]], -1))",
)


class FromTorch(AbstractModel):
    """A PyTorch module that answers stacked prompts, in evaluation mode.

    It runs on the module's device, on floating-point tensors of the type of its parameters, on integers of 64 bits and
    on booleans. Its answers are arrays of JAX. The module stays as it is: changes of its weights count at once, and the
    mode of each layer is restored after each call. A diagnostic that needs derivatives takes them by autograd, see
    :func:`~icllab.models.torch_derivatives.with_autograd`.

    Attributes:
        module: ``torch.nn.Module``.
        features: Function of a prompt, whose arrays are tensors, that returns the module's arguments: a tensor or a
            dict, which is one argument; a tuple of positional arguments; or ``(arguments, keywords)``, a tuple and a
            dict of keyword arguments. None: ``(prompt.x, prompt.y)`` for regression prompts, all tokens but the last
            for tokens, and for items with labels the sequence [prompt, token, position_dim + dim] that
            ``ItemLabelPrompt.tokens`` describes. The module must not look at the target of a position when it answers
            it.
        answers: Function of the value that the module returns, which gives the tensor of answers: of the shape
            [prompt, position] for regression, else [prompt, position, class]. None: the value is that tensor.
        positions: ``"every"``; or ``"last"``, if the module answers the last position only, with or without an axis of
            positions.
        heads: Modules by name whose input is the outputs of so many heads side by side, such as
            ``{"blocks.0.attn.out_proj": 4}``; only for attention that a trace does not see by itself.
        arrangement: :class:`~icllab.models.networks.embedding.Interleaved` or ``Joined``, which say the tokens of
            scores of heads; None if there are as many tokens as positions.
        batched: Whether tensors have a leading axis of prompts, as PyTorch's layers expect. If so, a single prompt is
            answered as a stack of one.

    Raises:
        InputError: The module is not a ``torch.nn.Module``; or, when called, ``features`` is missing for prompts of
            another kind, the module fails, or its answer is not a tensor of the right shape. The shapes of its tensors
            are named.
    """

    traceable = False
    differentiable = False
    heads_in_trace = True  # how many heads there are is known when it runs
    module: Any = eqx.field(static=True)
    features: Callable[[Any], Any] | None = eqx.field(static=True, default=None)
    answers: Callable[[Any], Any] | None = eqx.field(static=True, default=None)
    positions: Literal["every", "last"] = eqx.field(static=True, default="every", kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    batched: bool = eqx.field(static=True, default=True, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    heads: Mapping[str, int] | tuple[tuple[str, int], ...] = eqx.field(
        static=True, default=(), kw_only=True, converter=lambda value: tuple(dict(value).items())
    )
    arrangement: AbstractArrangement | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        methods = (getattr(self.module, name, None) for name in ("__call__", "eval", "parameters", "modules"))
        if isinstance(self.module, type) or not all(map(callable, methods)):
            raise expected("module", "a torch.nn.Module", kind_of(self.module))
        for name, of in (("features", "a prompt"), ("answers", "the module's value")):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise expected(name, f"a function of {of}, or None", kind_of(getattr(self, name)))
        if self.positions not in ("every", "last"):
            raise expected("positions", "'every' or 'last'", self.positions)
        require_flag("batched", self.batched)
        for name, count in self.heads:
            require_integer(f"heads[{name!r}]", count)
        if self.arrangement is not None:
            require_instance("arrangement", self.arrangement, AbstractArrangement, "one such as Interleaved(), or None")

    def __call__(self, prompt: Any) -> Float[Array, "..."]:
        """The module's answers to stacked prompts or to one prompt."""
        leaves = (leaf for kind, leaf in _SEQUENCES.items() if isinstance(prompt, kind))
        if self.batched and any(getattr(prompt, leaf).ndim == 1 for leaf in leaves):
            return self(jax.tree.map(lambda leaf: leaf[None], prompt))[0]
        return jnp.asarray(self.on_host(prompt))

    def on_host(self, prompt: Any) -> np.ndarray:
        """The answers without an operation of JAX, as a callback needs them."""
        import torch  # pyright: ignore[reportMissingImports]

        with self.evaluation(), torch.no_grad():
            answer = self.answer(jax.tree.map(self.tensor, prompt)).detach().cpu()
        return np.asarray(answer.float() if answer.dtype == torch.bfloat16 else answer)

    @property
    def name(self) -> str:
        """Name of the module in errors."""
        return f"module {type(self.module).__name__}"

    def tensor(self, values: Any) -> Any:
        """Values as a tensor on the module's device, of its type if they are real numbers."""
        import torch  # pyright: ignore[reportMissingImports]

        weight = next(iter(self.module.parameters()), None)
        device, dtype = ("cpu", torch.get_default_dtype()) if weight is None else (weight.device, weight.dtype)
        numbers = torch.from_numpy(np.array(values))
        kept = np.asarray(values).dtype == bool
        return numbers.to(device, dtype if numbers.is_floating_point() else numbers.dtype if kept else torch.int64)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluation mode of every layer, in one thread at a time, and afterwards the mode that each had."""
        with _ONE_CALL:
            modes = [(layer, layer.training) for layer in self.module.modules()]
            self.module.eval()
            try:
                yield
            finally:
                for layer, training in modes:
                    layer.training = training

    def answer(self, prompt: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """The tensor of answers to prompts of tensors, with other values of the parameters if they are given."""
        try:
            return self._shaped(self._called(prompt, parameters), prompt)
        except IclError:
            raise
        except Exception as error:
            raise self._failure(error, prompt) from error

    def _called(self, prompt: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """The answers of the module, of any shape."""
        arguments, keywords = self._arguments(prompt)
        if parameters is None:
            value = self.module(*arguments, **keywords)
        else:
            import torch  # pyright: ignore[reportMissingImports]

            value = torch.func.functional_call(self.module, dict(parameters), arguments, keywords)
        return value if self.answers is None else self.answers(value)

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Patterns and outputs of heads by name, and the answer; see :func:`torch_trace`."""
        return torch_trace(self, prompt, edit)

    def _arguments(self, prompt: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the module, for a prompt of tensors."""
        if self.features is not None:
            value = self.features(prompt)
            if not isinstance(value, tuple | list):
                return (value,), {}
            if len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict):
                return value[0], value[1]
            return tuple(value), {}
        if isinstance(prompt, RegressionPrompt):
            return (prompt.x, prompt.y), {}
        if isinstance(prompt, TokenPrompt):
            return (prompt.tokens[..., :-1],), {}
        if isinstance(prompt, ItemLabelPrompt):
            return (_item_label_tokens(prompt),), {}
        hint = "a function of a prompt of tensors, which returns the module's arguments"
        raise expected("features", f"a function for prompts of kind {type(prompt).__name__}", None, hint)

    def _shaped(self, answer: Any, prompt: Any) -> Any:
        """The answer with its axes of prompts and positions; raise if it has others."""
        import torch  # pyright: ignore[reportMissingImports]

        if not isinstance(answer, torch.Tensor):
            names = f" with {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
            key = repr(next(iter(answer), "")) if isinstance(answer, Mapping) else "0"
            hint = f"answers=lambda a: a[{key}] takes one part"
            raise expected(self.name, "a tensor of answers", f"{kind_of(answer)}{names}", hint)
        kind = next((kind for kind in _SEQUENCES if isinstance(prompt, kind)), None)
        if kind is None:
            return answer
        places = prompt.positions if self.positions == "every" else 1
        lead = (len(getattr(prompt, _SEQUENCES[kind])), places) if self.batched else (places,)
        classes = 0 if kind is RegressionPrompt else 1
        shape = tuple(answer.shape)
        if self.positions == "last" and len(shape) == len(lead) - 1 + classes:
            answer = answer.unsqueeze(len(lead) - 1)
        if len(answer.shape) == len(lead) + classes and tuple(answer.shape[: len(lead)]) == lead:
            return answer
        axes = "[prompt, position" if self.batched else "[position"
        requirement = f"answers {axes}{', class]' if classes else ']'}, {(*lead, 'class') if classes else lead}"
        raise expected(self.name, requirement, shape, _remedy(shape, lead, classes, prompt.positions))

    def _failure(self, error: Exception, prompt: Any) -> InputError:
        """The error for a failed call, with the shapes of the prompt's tensors and of those in the innermost layer."""
        layers = getattr(self.module, "named_modules", lambda: [("", self.module)])()
        names = {id(layer): name for name, layer in layers}
        place, tensors = "features" if self.answers is None else "features or answers", {}
        for frame, _ in traceback.walk_tb(error.__traceback__):
            layer = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))  # the first argument of a method
            if id(layer) in names:
                place = f"{type(layer).__name__} {names[id(layer)]}".strip()
                parameters = getattr(layer, "named_parameters", lambda recurse: [])(recurse=False)
                tensors = {**frame.f_locals, **dict(parameters)}
        actual = f"{type(error).__name__} in {place} ({_shapes(tensors)}): {error}".replace(" ()", "")
        actual = " ".join(actual.split())
        shapes = _shapes(getattr(prompt, "__dict__", {}))
        failure = InputError(f"{self.name}: expected an answer to a prompt of {shapes}, got {actual}")
        hint = self._way_out(error, prompt)
        if not hint and self.features is None:
            hint = "change its arguments with features= and its value with answers="
            if isinstance(prompt, RegressionPrompt) and self.batched:
                hint, failure.lines = f"{hint}, such as", LAYOUTS
        failure.args = (f"{failure.args[0]}; {hint}" if hint else failure.args[0],)
        return failure

    def _way_out(self, error: Exception, prompt: Any) -> str:
        """A hint on a call that fails because of a device or a vocabulary; empty for other errors."""
        text = str(error).lower()
        if "same device" in text:
            return "forward should make its tensors on the device of its arguments"
        if "cuda" in text or "nvidia" in text:
            return "without a GPU take module.to('cpu'), and no .cuda() or device='cuda' in forward"
        least, most = 1, getattr(prompt, "positions", 0) + 1  # one position alone may be of any layout
        while most - least > 1:
            middle = (least + most) // 2
            try:
                self._shaped(self._called(part := _beginning(prompt, middle)), part)
                least = middle
            except Exception:  # whatever a module raises
                most = middle
        if least == getattr(prompt, "positions", 0) and isinstance(prompt, TokenPrompt):
            return f"the tokens reach {int(prompt.tokens.max())}: take a task with the vocabulary of the network"
        return f"it answers at most {least} positions: take shorter prompts" if least > 1 else ""


def from_module(value: Any, prompt: Any) -> Any:
    """:class:`FromTorch` of a bare ``torch.nn.Module``; any other value as it is."""
    if not is_torch_module(value):
        return value
    last = isinstance(prompt, ItemLabelPrompt) or getattr(value, "positions", None) == "last"
    return FromTorch(value, positions="last" if last else "every")


def is_torch_module(value: Any) -> bool:
    """True for a ``torch.nn.Module``, recognised by its class's name without importing PyTorch."""
    kinds = type(value).__mro__
    return any(kind.__name__ == "Module" and kind.__module__.partition(".")[0] == "torch" for kind in kinds)


def _item_label_tokens(prompt: Any) -> Any:
    """``ItemLabelPrompt.tokens`` of tensors."""
    import torch  # pyright: ignore[reportMissingImports]

    count = 2 * prompt.pairs + 1
    content = prompt.items.new_zeros(*prompt.items.shape[:-2], count, prompt.items.shape[-1])
    content[..., 0::2, :], content[..., 1::2, :] = prompt.items, prompt.label_vectors
    places = prompt.shift[..., None] + torch.arange(count, device=prompt.shift.device)
    return torch.cat([torch.nn.functional.one_hot(places, prompt.position_dim).to(content), content], -1)


def _beginning(prompt: Any, positions: int) -> Any:
    """The first positions of a prompt of tensors, of tokens with zeros, which are in every vocabulary."""
    if isinstance(prompt, RegressionPrompt):
        return jax.tree.map(lambda t: t[..., :positions, :] if t is prompt.x else t[..., :positions], prompt)
    return jax.tree.map(lambda t: 0 * t[..., : positions + 1], prompt) if isinstance(prompt, TokenPrompt) else prompt


def _remedy(shape: tuple[int, ...], lead: tuple[int, ...], classes: int, positions: int) -> str:
    """The argument of :class:`FromTorch` that turns answers of another shape into those expected."""
    if shape in ((*lead, 1), (*lead[::-1], 1)) and not classes:
        return f"answers=lambda a: a[..., 0]{'' if shape[:-1] == lead else '.T'} makes them"
    if len(lead) == 2 and shape[:2] == lead[::-1]:
        return "time comes first: answers=lambda a: a.transpose(0, 1), and features= for its arguments"
    if lead[-1] == 1:
        return "answers=lambda a: a[:, -1:] takes the last, and positions='every' is for every position"
    if shape[: len(lead) - 1] == lead[:-1] and shape[len(lead) - 1 :][:1] in ((2 * positions,), (2 * positions - 1,)):
        return f"answers=lambda a: a[{':, ' * (len(lead) - 1)}0::2] takes those of every other token"
    if shape[: len(lead)] in (lead[:-1], (*lead[:-1], 1)):
        return "positions='last' declares that it answers the last position alone"
    return "answers= is a function of its value that makes them"


def _shapes(values: Any) -> str:
    """Names and shapes of the tensors among the values."""
    tensors = {name: value for name, value in values.items() if hasattr(value, "detach") and hasattr(value, "shape")}
    shapes = [f"{name} {tuple(value.shape)}" for name, value in tensors.items()]
    return ", ".join(shapes[:_SHAPES] + ["..."] * (len(shapes) > _SHAPES))
