"""A PyTorch module as a predictor. PyTorch is imported when the predictor is called."""

import traceback
from collections.abc import Callable, Mapping
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


class FromTorch(AbstractModel):
    """A PyTorch module that answers stacked prompts, in evaluation mode and without gradients.

    It runs on the module's device, on floating-point tensors of the type of its parameters and on integers of 64 bits.
    Its answers are arrays of JAX. The module stays as it is: changes of its weights count at once, and its mode is
    restored after each call.

    Attributes:
        module: ``torch.nn.Module``.
        features: Function of a prompt, whose arrays are tensors, that returns the module's arguments: a tensor or a
            tuple of tensors. None: ``(prompt.x, prompt.y)`` for regression prompts, and all tokens but the last for
            tokens. The module must not look at the target of a position when it answers it.
        positions: ``"every"``; or ``"last"``, if the module answers the last position only.
        heads: Modules by name whose input is the outputs of so many heads side by side, such as
            ``{"blocks.0.attn.out_proj": 4}``; only for attention that a trace does not see by itself.
        arrangement: :class:`~icllab.models.networks.embedding.Interleaved` or ``Joined``, which say the tokens of
            scores of heads, if there are more tokens than positions.
        batched: Whether tensors have a leading axis of prompts, as PyTorch's layers expect. If so, a single prompt is
            answered as a stack of one.

    Raises:
        InputError: The module is not a ``torch.nn.Module``; or, when called, ``features`` is missing for prompts of
            another kind, the module fails, or its answer is not a tensor. The shapes of its tensors are named.
    """

    traceable = False
    differentiable = False
    heads_in_trace = True  # how many heads there are is known when it runs
    module: Any = eqx.field(static=True)
    features: Callable[[Any], Any] | None = eqx.field(static=True, default=None)
    positions: Literal["every", "last"] = eqx.field(static=True, default="every", kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    batched: bool = eqx.field(static=True, default=True, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    heads: Mapping[str, int] | tuple[tuple[str, int], ...] = eqx.field(
        static=True, default=(), kw_only=True, converter=lambda value: tuple(dict(value).items())
    )
    arrangement: AbstractArrangement | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        methods = (getattr(self.module, name, None) for name in ("__call__", "eval", "parameters"))
        if isinstance(self.module, type) or not all(map(callable, methods)):
            raise expected("module", "a torch.nn.Module", kind_of(self.module))
        if not (self.features is None or callable(self.features)):
            raise expected("features", "a function of a prompt, or None", kind_of(self.features))
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
        import torch  # pyright: ignore[reportMissingImports]

        weight = next(iter(self.module.parameters()), None)
        device, dtype = ("cpu", torch.get_default_dtype()) if weight is None else (weight.device, weight.dtype)

        def tensor(leaf: Any) -> Any:
            values = torch.from_numpy(np.array(leaf))
            return values.to(device, dtype if values.is_floating_point() else torch.int64)

        tensors = jax.tree.map(tensor, prompt)
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                answer = self.module(*self._arguments(tensors))
        except IclError:
            raise
        except Exception as error:
            raise self._failure(error, tensors) from error
        finally:
            self.module.train(training)
        if not isinstance(answer, torch.Tensor):
            raise expected("module", "a module that returns a tensor of answers", kind_of(answer))
        answer = answer.detach().cpu()
        return jnp.asarray(np.asarray(answer.float() if answer.dtype == torch.bfloat16 else answer))

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Patterns and outputs of heads by name, and the answer; see :func:`torch_trace`."""
        return torch_trace(self, prompt, edit)

    def _arguments(self, prompt: Any) -> tuple[Any, ...]:
        """Arguments of the module, for a prompt of tensors."""
        if self.features is not None:
            arguments = self.features(prompt)
            return tuple(arguments) if isinstance(arguments, tuple | list) else (arguments,)
        if isinstance(prompt, RegressionPrompt):
            return prompt.x, prompt.y
        if isinstance(prompt, TokenPrompt):
            return (prompt.tokens[..., :-1],)
        hint = "a function of a prompt of tensors, which returns the module's arguments"
        raise expected("features", f"a function for prompts of kind {type(prompt).__name__}", None, hint)

    def _failure(self, error: Exception, prompt: Any) -> InputError:
        """The error for a failed call, with the shapes of the prompt's tensors and of those in the innermost layer."""
        layers = getattr(self.module, "named_modules", lambda: [("", self.module)])()
        names = {id(layer): name for name, layer in layers}
        place, tensors = "features", {}
        for frame, _ in traceback.walk_tb(error.__traceback__):
            layer = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))  # the first argument of a method
            if id(layer) in names:
                place = f"{type(layer).__name__} {names[id(layer)]}".strip()
                parameters = getattr(layer, "named_parameters", lambda recurse: [])(recurse=False)
                tensors = {**frame.f_locals, **dict(parameters)}
        actual = f"{type(error).__name__} in {place} ({_shapes(tensors)}): {error}".replace(" ()", "")
        actual = " ".join(actual.split())
        shapes = _shapes(getattr(prompt, "__dict__", {}))
        hint = "" if self.features else "; change its arguments with features="
        return InputError(f"module: expected an answer to a prompt of {shapes}, got {actual}{hint}")


def is_torch_module(value: Any) -> bool:
    """True for a ``torch.nn.Module``, recognised by its class's name without importing PyTorch."""
    kinds = type(value).__mro__
    return any(kind.__name__ == "Module" and kind.__module__.partition(".")[0] == "torch" for kind in kinds)


def _shapes(values: Any) -> str:
    """Names and shapes of the tensors among the values."""
    tensors = {name: value for name, value in values.items() if hasattr(value, "detach") and hasattr(value, "shape")}
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
