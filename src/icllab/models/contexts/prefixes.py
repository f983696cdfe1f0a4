r"""A context as additional weights of every layer: the keys and values of its tokens.

.. math:: \mathrm{Attention}_l(q_i) = \mathrm{softmax}\big(q_i \cdot [K_l^c, K_l]\big)\,[V_l^c; V_l]

In a causal transformer the tokens of a context do not depend on what follows. Their keys and values in each layer are
constants, and the transformer that has these constants for weights answers every query exactly as the transformer
after that context does. Trained freely instead of computed, they are the weights of prefix tuning.

Source: [LiLiang21].
"""

from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.core.prompt import Prompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.embedding import Embedding, Interleaved, Layout
from icllab.models.networks.transformer import Transformer

AnyPrompt = TypeVar("AnyPrompt", bound=Prompt)


def after(context: AnyPrompt, prompt: AnyPrompt) -> AnyPrompt:
    """Put the complete examples of a context before a prompt; for token ids, all ids before the last query.

    Raises:
        InputError: They are no two prompts of regression, or of token ids.
    """
    mask = getattr(prompt, "mask", None)
    if getattr(context, "mask", None) is not None:
        raise expected(
            "context",
            "a prompt without a mask, so that later tokens have fixed positions",
            "a prompt with a mask",
            "remove its padding",
        )
    if mask is not None:
        mask = jnp.concatenate([jnp.ones(context.length, bool), mask])
    if isinstance(context, RegressionPrompt) and isinstance(prompt, RegressionPrompt):
        x, y = jnp.concatenate([context.x[:-1], prompt.x]), jnp.concatenate([context.y[:-1], prompt.y])
        return RegressionPrompt(x=x, y=y, mask=mask)  # pyright: ignore[reportReturnType]
    if isinstance(context, TokenPrompt) and isinstance(prompt, TokenPrompt):
        tokens = jnp.concatenate([context.tokens[: context.length], prompt.tokens])
        return TokenPrompt(tokens=tokens, mask=mask)  # pyright: ignore[reportReturnType]
    kinds = f"{type(context).__name__} and {type(prompt).__name__}"
    raise expected("context", "two regression prompts or two prompts of token ids", kinds)


def context_tokens(model: Transformer, context: Prompt) -> int:
    """Number of tokens that the model uses for the examples of a context."""
    return (2 if isinstance(model.embedding.arrangement, Interleaved) else 1) * context.length


class Prefixed(AbstractModel):
    """A transformer with a context in its weights. It answers as the transformer does after the context.

    Positions do not restart: the tokens of the prompt have those that come after the context, and a model with a table
    of positions needs its length for both together. Only the positions of the prompt are answered.

    Activations are those of the transformer, for the tokens of the prompt; ``keys``, ``values``, ``scores`` and
    ``pattern`` have the prefix before them.

    Attributes:
        model: The transformer.
        keys: Keys of the context in each layer, turned by their positions where these are rotary.
        values: Its values in each layer.
        examples: Complete examples in the context.

    Derived: docs/contexts-to-weights.md, A context as weights.
    """

    model: Transformer
    keys: tuple[Float[Array, "prefix head dim"], ...]
    values: tuple[Float[Array, "prefix head dim"], ...]
    examples: int = eqx.field(static=True)

    @classmethod
    def from_context(cls, model: Transformer, context: Prompt) -> "Prefixed":
        """Take the keys and values of a context's complete examples, without its last query.

        Raises:
            InputError: The context is empty, or what becomes of its tokens depends on later ones.
        """
        if context.length < 1:
            raise expected("context", "at least 1 example", context.length)
        prefix = context_tokens(model, context)
        if np.triu(model.embedding.arrangement.layout(context.positions).visible, 1)[:prefix].any():
            raise expected("model", "a causal model", "a model whose tokens see later tokens", "causal=True")
        keys, values = _held(model.trace(context), len(model.blocks), prefix)
        return cls(model, keys, values, context.length)

    def extended(self, context: Prompt) -> "Prefixed":
        """Add another context after this one; the result is exactly the prefix of both."""
        prefix = len(self.keys[0]) + context_tokens(self.model, context)
        keys, values = _held(self.trace(context), len(self.keys), prefix)
        return Prefixed(self.model, keys, values, self.examples + context.length)

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the transformer."""
        return self.model.positions

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        parts = {"keys": self.keys, "values": self.values}
        prefixes = {
            f"block{i}.attention.{part}": layers[i] for part, layers in parts.items() for i in range(len(layers))
        }

        def lengthened(name: str, value: Array) -> Array:
            return jnp.concatenate([prefixes[name], value]) if name in prefixes else value

        record, model = Recorder(edit, first=lengthened), self.model
        x, layout = self._embedded(model.embedding, prompt)
        x = record("embedding", x)
        last = len(model.blocks) - 1
        for i, block in enumerate(model.blocks):
            x = block(x, layout, record, f"block{i}", layout.read if i == last else None)
        if model.final_norm is not None:
            x = model.final_norm(x)
        x = record("readout", x)
        return Trace(record("prediction", model.answers(x)), record.activations)

    def _embedded(self, embedding: Embedding, prompt: Any) -> tuple[Array, Layout]:
        """Tokens of the prompt at positions after the context, and the keys they see (the prefix's first)."""
        x, layout = embedding(after(_blank(prompt, self.examples), prompt))
        prefix, begin = len(self.keys[0]), layout.read.start or len(x)  # joined queries come after all examples
        queries = range(begin, len(x))
        queries = queries[self.examples :] if len(queries) > 1 else queries
        rows = np.array([*range(prefix, begin), *queries])
        columns = np.append(np.arange(prefix), rows)
        visible, read = layout.visible[rows][:, columns], layout.read if not queries else slice(begin - prefix, None)
        return x[rows], Layout(visible, layout.examples[rows], layout.place[rows], read, len(columns))


def _held(trace: Trace, layers: int, prefix: int) -> list[tuple[Array, ...]]:
    """Keys and values of the first tokens in every layer."""
    names = [[f"block{i}.attention.{part}" for i in range(layers)] for part in ("keys", "values")]
    return [tuple(trace.activations[name][:prefix] for name in of_part) for of_part in names]


def _blank(prompt: Any, examples: int) -> Any:
    """A context of empty tokens, which only shifts the positions after it."""
    size = examples + (2 if isinstance(prompt, TokenPrompt) else 1)
    bare = prompt if getattr(prompt, "mask", None) is None else eqx.tree_at(lambda p: p.mask, prompt, None)
    return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype), bare)
