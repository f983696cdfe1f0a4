"""A language model with its tokenizer: text in, and logits, losses or text out."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import ResultWarning, expected, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.tokenizers import first_ids, plain, token_ids
from icllab.core.views import one_line
from icllab.models.interventions.edits import unedited
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.generation import Sampling, padded, written
from icllab.models.pretrained.loading import load
from icllab.models.pretrained.tokenization import tokenizer

CHUNK = 16  # tokens that are written before the text is searched for its end


def open(path: str | os.PathLike[str], **options: Any) -> "LanguageModel":  # as icl.open
    """Open the model and the tokenizer of a folder or file; :func:`.pretrained.load` takes the ``options``.

    Raises:
        InputError: The model or its tokenizer is not understood.
        EnvironmentFault: The extra ``[pretrained]`` is not installed.
    """
    return LanguageModel(load(path, **options), tokenizer(path))


class LanguageModel:
    """A transformer of token ids and its tokenizer.

    A text becomes ids by :meth:`tokens`, with the first token that the file says. Sequences of ids are taken as they
    are. A list of texts, or of sequences of ids, is a batch: its answers are those of its members one by one.

    Attributes:
        model: The :class:`~icllab.models.networks.transformer.Transformer`, which every diagnostic takes; or one with
            interventions, such as ``models.ablated(model, heads=["block18.6"])``.
        tokenizer: The ``tokenizers.Tokenizer``.
    """

    def __init__(self, model: Any, tokenizer: Any):
        arrangement = getattr(getattr(unedited(model), "embedding", None), "arrangement", None)
        if not isinstance(unedited(model), Transformer) or not isinstance(arrangement, Tokens):
            raise expected("model", "a Transformer of token ids", type(model).__name__, "pretrained.load opens one")
        if not hasattr(tokenizer, "encode"):
            raise expected("tokenizer", "a tokenizers.Tokenizer", type(tokenizer).__name__, "pretrained.tokenizer")
        self.model, self.tokenizer = model, plain(tokenizer)

    def tokens(self, text: str, first: str | int | None = "file") -> list[int]:
        """Ids of a text after its first token.

        Args:
            text: The text. Templates of chats are not applied: they are text, to be written out.
            first: ``"file"``: the token that the file's tokenizer puts before each text, if it has one; None: no such
                token; or a token or its id.

        Raises:
            InputError: The text is empty, or the tokenizer has no token for one of its characters.
        """
        return token_ids(self.tokenizer, text, first)

    def __call__(self, text: Any) -> xr.DataArray:
        """Logits [position, vocabulary] of the token after each position of a text, or of a sequence of ids.

        The coordinate ``token`` is the text of the token at each position. A list is stacked along ``prompt``, with NaN
        after a shorter one.
        """
        prompts, single = self._prompts(text)
        answers = [self._by_position(ids, _logits(self.model, ids)) for ids in prompts]
        return answers[0] if single else _stacked(answers)

    def loss(self, text: Any) -> xr.DataArray:
        """Cross-entropy [position] of the token after each position, in nats; NaN at the last, after which none comes.

        Coordinates are ``token``, the text of the token at each position, and ``target``, of the one after it. A list
        is stacked along ``prompt``, with NaN after a shorter one.
        """
        prompts, single = self._prompts(text)
        answers = []
        for ids in prompts:
            losses = self._by_position(ids, np.append(_losses(self.model, ids), np.nan))
            answers.append(losses.assign_coords(target=("position", [*losses.token.values[1:], ""])))
        return answers[0] if single else _stacked(answers)

    def generate(
        self,
        text: Any,
        tokens: int = 64,
        temperature: float = 0.0,
        *,
        key: PRNGKeyArray | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Any:
        """Text that the model writes after a text, or after a sequence of ids; of a list, one for each member.

        An end-of-text token does not end it unless ``stop`` names its text.

        Args:
            text: Text, sequence of ids, or a list of them, of any lengths.
            tokens: Number of tokens, or the most with ``stop``.
            temperature: 0 takes the likeliest token, 1 draws from the model's distribution.
            key: Key of the draws, for a temperature above 0. Member i of a list has ``jax.random.fold_in(key, i)``.
            stop: Text, or several, before the first of which the answer ends.

        Raises:
            InputError: An argument is out of range, the model has too few positions, or the effect of an intervention
                on a token depends on the number of tokens after it.

        Warns:
            ResultWarning: No text of ``stop`` came.
        """
        require_integer("tokens", tokens)
        NON_NEGATIVE.require("temperature", temperature)
        if temperature > 0 and key is None:
            raise expected("key", "a random key for a temperature above 0", key, "jax.random.key(0) makes one")
        key = jax.random.key(0) if key is None else key
        require_key(key)
        ends = [stop] if isinstance(stop, str) else list(stop or ())
        if not all(isinstance(end, str) and end for end in ends):
            raise expected("stop", "a text, or several", stop)
        prompts, single = self._prompts(text, tokens)
        keys = key[None] if single else jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(len(prompts)))
        sampling = Sampling(jnp.asarray(temperature, float), keys)
        texts, stopped = [""] * len(prompts), [False] * len(prompts)
        for ids in written(self.model, prompts, tokens, sampling, CHUNK if ends else tokens):
            for i, prompt in enumerate(prompts):
                if not stopped[i]:
                    texts[i] = self._text_after(prompt.tolist(), ids[i].tolist())
                    places = [place for end in ends if (place := texts[i].find(end)) >= 0]
                    stopped[i] = bool(places)
                    texts[i] = texts[i][: min(places, default=None)]
            if all(stopped):
                break
        if ends and not all(stopped):
            message = f"stop: {stop!r} did not come within {tokens} tokens of {stopped.count(False)} of {len(prompts)}"
            warnings.warn(f"{message} answers", ResultWarning, stacklevel=2)
        return texts[0] if single else texts

    def _prompts(self, text: Any, more: int = 0) -> tuple[list[np.ndarray], bool]:
        """Ids of each prompt, and whether ``text`` is one of them."""
        single = isinstance(text, str) or not hasattr(text, "__len__") or not len(text) or np.ndim(text[0]) == 0
        single = single and not (isinstance(text, list | tuple) and len(text) and isinstance(text[0], str))
        network = unedited(self.model)
        ids = [self.tokens(part) if isinstance(part, str) else part for part in ([text] if single else text)]
        return [network.require_ids(part, more) for part in ids], single

    def _by_position(self, ids: np.ndarray, values: np.ndarray) -> xr.DataArray:
        dims = ("position", "vocabulary")[: values.ndim]
        tokens = [self.tokenizer.decode([index], skip_special_tokens=False) for index in ids.tolist()]
        return xr.DataArray(values, dims=dims, coords={"position": np.arange(len(ids)), "token": ("position", tokens)})

    def _text_after(self, prompt: list[int], ids: list[int]) -> str:
        """The text of ids after a prompt; decoded with it, since a token alone may lose the space before it."""
        before, whole = (self.tokenizer.decode(part, skip_special_tokens=False) for part in (prompt, [*prompt, *ids]))
        return (
            whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(ids, skip_special_tokens=False)
        )

    def __repr__(self) -> str:
        network, first = unedited(self.model), first_ids(self.tokenizer)
        sizes = f"{len(network.blocks)} blocks, vocabulary {network.embedding.arrangement.vocabulary}"
        token = repr(self.tokenizer.id_to_token(first[0])) if first else "None"
        return one_line("LanguageModel", {"model": f"{type(self.model).__name__} of {sizes}", "first token": token})


def _stacked(answers: list[xr.DataArray]) -> xr.DataArray:
    result = xr.concat(answers, "prompt", join="outer")
    assert isinstance(result, xr.DataArray)
    return result


def _logits(model: Any, ids: np.ndarray) -> np.ndarray:
    return np.asarray(_answered(model, padded(model, ids), False))[: len(ids)]


def _losses(model: Any, ids: np.ndarray) -> np.ndarray:
    return np.asarray(_answered(model, padded(model, ids), True))[: len(ids) - 1]


@eqx.filter_jit
def _answered(model: Any, ids: Array, losses: bool) -> Array:
    """Logits at each position, or losses of the ids that follow."""
    logits = model(TokenPrompt(jnp.append(ids, 0)))
    if not losses:
        return logits
    right = jnp.take_along_axis(logits[:-1], ids[1:, None], 1)[:, 0]
    return jax.nn.logsumexp(logits[:-1], axis=1) - right
