r"""Derivatives of PyTorch modules in JAX: one primitive, whose programs run in PyTorch.

A *program* maps tensors to tensors: the answers of a module, :math:`f(z)`, as a function of its parameters and of
prompts; the tangent :math:`(z, \dot z)\mapsto J_f(z)\,\dot z` of a program; its pullback
:math:`(z, u)\mapsto J_f(z)^\top u`. JAX's rules compose programs, and autograd runs them. A tangent is the pullback of
a pullback, so that a module with second derivatives has Hessian products. Prompts that JAX maps over are one call of
the module; parameters that it maps over are a loop.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from icllab.core.errors import IclError, expected
from icllab.core.protocols import AbstractPredictor
from icllab.models.pytorch import FromTorch

PER_CALL = 2e6  # nominal operations of a call beside the module's own
_GRAPHS: dict[Any, Any] = {}  # the newest graphs that wait for their pullbacks
_KEPT = 2  # graphs: a value and its gradient, for a product with the Hessian


@dataclass(frozen=True)
class Answers:
    """Answers of a module as a function of its parameters and of the leaves of prompts, which may have leading axes."""

    source: FromTorch
    names: tuple[str, ...]  # of parameters
    prompt: Any  # tree structure
    axes: tuple[int, ...]  # number of axes of each leaf of one prompt
    shape: tuple[int, ...]  # of the answer to one prompt


@dataclass(frozen=True)
class Derivative:
    """A program with a graph for some arguments (``"value"``), or the product of its Jacobian for these."""

    program: "Program"
    wrt: tuple[int, ...]
    kind: Literal["value", "tangent", "pullback"]


Program: TypeAlias = Answers | Derivative


def parameter_flags(program: Program) -> tuple[list[bool], list[bool]]:
    """Flags of the arguments and of the values: True for parameters, False for prompts and answers."""
    if isinstance(program, Answers):
        return [True] * len(program.names) + [False] * len(program.axes), [False]
    arguments, values = parameter_flags(program.program)
    chosen = [arguments[i] for i in program.wrt]
    pairs = {"value": (arguments, values), "tangent": (arguments + chosen, values)}
    return pairs.get(program.kind, (arguments + values, chosen))


def values_of(program: Program, arguments: Any) -> list[ShapedArray]:
    """Shapes and types of a program's values."""
    if isinstance(program, Answers):
        first = arguments[len(program.names)]
        types = [a.dtype for a in arguments if jnp.issubdtype(a.dtype, jnp.floating)]
        lead = first.shape[: len(first.shape) - program.axes[0]]
        return [ShapedArray((*lead, *program.shape), jnp.result_type(*types, jnp.float32))]
    if program.kind == "pullback":
        return [ShapedArray(arguments[i].shape, arguments[i].dtype) for i in program.wrt]
    return values_of(program.program, arguments[: len(parameter_flags(program.program)[0])])


def operations(program: Program, arguments: Any) -> float:
    """Nominal operations: two for each parameter at each position of each prompt, and three times that a derivative."""
    if isinstance(program, Answers):
        answered = values_of(program, arguments)[0].shape[: 1 - len(program.shape) or None]
        return PER_CALL + 2.0 * math.prod(answered) * sum(math.prod(a.shape) for a in arguments[: len(program.names)])
    factor = 1 if program.kind == "value" else 3
    return factor * operations(program.program, arguments[: len(parameter_flags(program.program)[0])])


def _run(program: Program, tensors: list[Any]) -> list[Any]:
    """Values of a program; they can be differentiated again if gradients are enabled."""
    import torch  # pyright: ignore[reportMissingImports]

    if isinstance(program, Answers):
        return [_answers(program, tensors)]
    count, again = len(parameter_flags(program.program)[0]), torch.is_grad_enabled()
    with torch.enable_grad():
        values, moving = _graph(program, tensors[:count])
        if program.kind == "value":
            return values
        if program.kind == "pullback":
            return _gradients(values, moving, tensors[count:], again=again)
        cotangents = [torch.zeros_like(value, requires_grad=True) for value in values]
        return _gradients(_gradients(values, moving, cotangents, again=True), cotangents, tensors[count:], again=again)


def _answers(program: Answers, tensors: list[Any]) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    count, source = len(program.names), program.source
    lead = tensors[count].shape[: tensors[count].ndim - program.axes[0]]
    pairs = zip(tensors[count:], program.axes, strict=True)
    leaves = [leaf.reshape(-1, *leaf.shape[leaf.ndim - axes :]) for leaf, axes in pairs]
    parameters = dict(zip(program.names, tensors[:count], strict=True))
    if source.batched:
        answer = source.answer(program.prompt.unflatten(leaves), parameters)
    else:
        prompts = map(program.prompt.unflatten, zip(*leaves, strict=True))
        answer = torch.stack([source.answer(prompt, parameters) for prompt in prompts])
    return answer.reshape(*lead, *answer.shape[1:])


def _graph(program: Derivative, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
    """Values of the program that is differentiated, and its moving arguments."""
    moving = {i: t if (t := tensors[i]).requires_grad else t.detach().requires_grad_() for i in program.wrt}
    return _run(program.program, [moving.get(i, t) for i, t in enumerate(tensors)]), list(moving.values())


def _gradients(values: list[Any], of: list[Any], cotangents: list[Any], *, again: bool) -> list[Any]:
    """Gradients of values along cotangents; zero for an argument without influence."""
    import torch  # pyright: ignore[reportMissingImports]

    pairs = [(value, u) for value, u in zip(values, cotangents, strict=True) if value.requires_grad]
    found: Any = [None] * len(of)
    if pairs:
        outputs, along = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, of, along, create_graph=again, allow_unused=True)
    nodes, seen = [g.grad_fn for g in found if g is not None] if again else [], set()
    while nodes:  # autograd leaves out a backward that is once_differentiable, without an error
        if (node := nodes.pop()) is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            if node.name() == "torch::autograd::Error":
                raise RuntimeError("a backward is once_differentiable")
    return [torch.zeros_like(a) if gradient is None else gradient for gradient, a in zip(found, of, strict=True)]


def _source(program: Program) -> FromTorch:
    return program.source if isinstance(program, Answers) else _source(program.program)


def _evaluated(program: Program, *arrays: Any) -> tuple[np.ndarray, ...]:
    """Values of a program of arrays; only NumPy and PyTorch run here, since JAX waits for the result.

    A value that is to be pulled back keeps its graph, so that the pullback of the same arguments needs no second call.
    """
    import torch  # pyright: ignore[reportMissingImports]

    source = _source(program)
    # Fused attention and cuDNN's recurrent layers have no second derivatives.
    plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with source.evaluation(), plain, torch.backends.cudnn.flags(enabled=False), torch.no_grad():
        tensors = [source.tensor(array) for array in arrays]
        if isinstance(program, Derivative) and program.kind != "tangent":
            count = len(parameter_flags(program.program)[0])
            key = program.program, program.wrt, tuple((np.shape(a), np.asarray(a).tobytes()) for a in arrays[:count])
            graph = _GRAPHS.pop(key, None)
            if graph is None:
                with torch.enable_grad():
                    graph = _graph(program, tensors[:count])
            if program.kind == "value":
                _GRAPHS[key], values = graph, graph[0]
                for old in list(_GRAPHS)[:-_KEPT]:
                    del _GRAPHS[old]
            else:
                values = _gradients(graph[0], graph[1], tensors[count:], again=False)
        else:
            values = _run(program, tensors)
    avals = values_of(program, [ShapedArray(np.shape(a), np.asarray(a).dtype) for a in arrays])
    pairs = zip(values, avals, strict=True)
    return tuple(np.asarray(value.detach().cpu().numpy(), aval.dtype) for value, aval in pairs)


torch_p = Primitive("torch")
torch_p.multiple_results = True
torch_p.def_impl(lambda *arrays, program: [jnp.asarray(value) for value in _evaluated(program, *arrays)])
torch_p.def_abstract_eval(lambda *avals, program: values_of(program, avals))


def _jvp(primals: Any, tangents: Any, *, program: Program) -> tuple[Any, Any]:
    wrt = tuple(i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero)
    values = torch_p.bind(*primals, program=Derivative(program, wrt, "value"))
    return values, torch_p.bind(*primals, *(tangents[i] for i in wrt), program=Derivative(program, wrt, "tangent"))


def _transpose(cotangents: Any, *arguments: Any, program: Derivative) -> list[Any]:
    count = len(parameter_flags(program.program)[0])
    avals = values_of(program, [a.aval if ad.is_undefined_primal(a) else jax.typeof(a) for a in arguments])
    pairs = zip(cotangents, avals, strict=True)
    along = [jnp.zeros(aval.shape, aval.dtype) if type(u) is ad.Zero else u for u, aval in pairs]
    pullback = Derivative(program.program, program.wrt, "pullback")
    return [None] * count + torch_p.bind(*arguments[:count], *along, program=pullback)


def _batch(arguments: Any, axes: Any, *, program: Program) -> tuple[Any, Any]:
    mapped = tuple(axis is not None for axis in axes)
    rows = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True)]
    inputs, outputs = parameter_flags(program)
    size, pairs = rows[mapped.index(True)].shape[0], list(zip(rows, mapped, strict=True))
    if any(outputs) or any(map(min, mapped, inputs)):
        one = functools.partial(torch_p.bind, program=program)
        values = jax.lax.map(lambda i: one(*(a[i] if has else a for a, has in pairs)), jnp.arange(size))
    else:
        triples = zip(rows, mapped, inputs, strict=True)
        rows = [a if has or fixed else jnp.broadcast_to(a, (size, *a.shape)) for a, has, fixed in triples]
        values = torch_p.bind(*rows, program=program)
    return values, [0] * len(values)


def _lower(ctx: Any, *arguments: Any, program: Program) -> Any:
    def call(*arrays: Any) -> tuple[np.ndarray, ...]:
        return _evaluated(program, *arrays)

    # jax.pure_callback makes arrays of JAX within the call, which can wait for a thread without end.
    avals = ctx.avals_in, ctx.avals_out
    options = {"has_side_effect": False, "returns_token": False}
    return mlir.emit_python_callback(ctx, call, None, list(arguments), *avals, **options)[0]


ad.primitive_jvps[torch_p] = _jvp
ad.primitive_transposes[torch_p] = _transpose
batching.primitive_batchers[torch_p] = _batch
mlir.register_lowering(torch_p, _lower)


class TorchFunction(AbstractPredictor):
    """A PyTorch module as a function that JAX traces, maps and differentiates.

    Attributes:
        parameters: Copies of the module's parameters: those that require gradients, or all if none does.
        source: The module, which stays as it is.
    """

    parameters: dict[str, Array]
    source: FromTorch

    @classmethod
    def from_predictor(cls, source: FromTorch) -> "TorchFunction":
        """Copy the parameters of a module; raise unless all are of float32, or all of float64."""
        named = dict(source.module.named_parameters())
        trained = {name: weight for name, weight in named.items() if weight.requires_grad} or named
        types = sorted({str(weight.dtype).removeprefix("torch.") for weight in named.values()})
        if types not in ([], ["float32"], ["float64"]):
            hint = "module.float() makes them"
            raise expected(source.name, "parameters of float32 for derivatives", ", ".join(types), hint)
        return cls({name: jnp.asarray(w.detach().cpu().numpy()) for name, w in trained.items()}, source)

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the module's predictor."""
        return self.source.positions

    def __call__(self, prompt: Any) -> Float[Array, "..."]:
        """The module's answer to one prompt; an example tells its shape."""
        leaves, structure = jax.tree.flatten(prompt)
        rng = np.random.default_rng(0)
        kinds = {"f": lambda shape: rng.normal(size=shape), "b": np.ones}
        example = [kinds.get(leaf.dtype.kind, np.zeros)(leaf.shape).astype(leaf.dtype) for leaf in leaves]
        shape, axes = self.source(structure.unflatten(example)).shape, tuple(leaf.ndim for leaf in leaves)
        program = Answers(self.source, tuple(self.parameters), structure, axes, shape)
        return torch_p.bind(*self.parameters.values(), *map(jnp.asarray, leaves), program=program)[0]


def with_autograd(predictor: Any, prompts: Any = None) -> Any:
    """Replace every :class:`FromTorch` in a predictor by a :class:`TorchFunction`, which has derivatives.

    With ``prompts``, two of them are answered and differentiated twice.

    Raises:
        InputError: A module is random, has an answer that is not finite, or autograd cannot differentiate it twice.
    """
    leaves, structure = jax.tree.flatten(predictor, is_leaf=lambda value: isinstance(value, FromTorch))
    sources = [leaf for leaf in leaves if isinstance(leaf, FromTorch)]
    if not sources:
        return predictor
    functions = [TorchFunction.from_predictor(leaf) if isinstance(leaf, FromTorch) else leaf for leaf in leaves]
    converted = structure.unflatten(functions)
    if prompts is not None:
        _require_derivatives(converted, sources[0].name, jax.tree.map(lambda leaf: leaf[:2], prompts))
    return converted


def _require_derivatives(predictor: Any, name: str, prompts: Any) -> None:
    params, static = eqx.partition(predictor, eqx.is_inexact_array)

    def square(params: Any) -> Any:
        return jnp.sum((1 + jax.vmap(eqx.combine(params, static))(prompts)) ** 2)  # also of answers that are zero

    answers, repeated = (np.asarray(jax.vmap(predictor)(prompts)) for _ in range(2))
    if not np.isfinite(answers).all():
        bad = np.flatnonzero(~np.isfinite(answers.reshape(*answers.shape[:2], -1)).all((0, 2)))
        raise expected(name, "finite answers", bad.tolist(), "these positions have others")
    if not np.array_equal(answers, repeated):
        hint = "it draws random numbers or keeps a state; dropout with training=self.training is off in evaluation mode"
        raise expected(name, "one answer to a prompt", "two", hint)
    try:
        gradient, pull = jax.vjp(jax.grad(square), params)
        pull(params)
    except IclError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise expected(name, "answers that autograd differentiates twice", reason) from error
    if not any(np.any(leaf) for leaf in jax.tree.leaves(gradient)):
        hint = "no .detach(), .item() or torch.no_grad() in forward"
        raise expected(name, "answers that depend on the parameters by autograd", "a gradient of zero", hint)
