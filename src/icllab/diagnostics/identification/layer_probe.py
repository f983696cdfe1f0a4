r"""Is there a model inside the network, which every layer improves? A probe of what the layers hold of the labels.

In a construction the label slot of example i holds, after l layers, :math:`y_i - f_l(x_i)`, what the model after l
steps has left of its label, and the query's slot :math:`-f_l(x_q)`. Where a network has label slots they are read.
Where it has a residual stream, a linear map is fitted that reads them, on one set of prompts, and judged on another.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.algorithms.descent import Descent
from icllab.algorithms.functional import FunctionalDescent
from icllab.core.errors import expected
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers_to, sample_prompts
from icllab.diagnostics.identification.verdicts import resamplings
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.models.linear.generalised import GeneralisedAttention
from icllab.models.linear.linear_attention import LinearAttention
from icllab.models.networks.embedding import Interleaved
from icllab.models.networks.transformer import Transformer
from icllab.training.ensembles import Ensemble

# Axes of a parameter that has one for each layer.
_PER_LAYER = {"rate": 1, "preconditioner": 3, "contraction": 3}


def stopped(algorithm: Any, layers: int) -> Any:
    """An algorithm of descent after its first steps."""
    if not isinstance(algorithm, Descent | FunctionalDescent):
        raise expected("algorithm", "an algorithm of descent", type(algorithm).__name__)
    if not 1 <= layers <= algorithm.layers:
        raise expected("layers", f"an integer from 1 to {algorithm.layers}", layers)
    first = {
        name: getattr(algorithm, name)[:layers]
        for name, axes in _PER_LAYER.items()
        if hasattr(algorithm, name) and getattr(algorithm, name).ndim == axes
    }
    return dataclasses.replace(algorithm, layers=layers, **first)


class Streams(Question):
    """What every layer holds: of the examples, where the layer has them, then of the query."""

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """All layers in a row."""
        return jnp.concatenate([part.reshape(-1) for pair in _streams(predictor, prompt) for part in pair])


class Targets(Question):
    """What a model fitted to the examples says of each of them, then of the query."""

    causal: bool = eqx.field(static=True)  # whether it is fitted, for each example, to that one and the earlier only

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """One number for each example and one for the query."""
        n = prompt.length

        def asked(place: Array, query: Array) -> Array:
            moved = RegressionPrompt(x=prompt.x.at[place].set(query), y=prompt.y)
            return predictor(moved)[place if self.causal else -1]

        example = jnp.arange(n)
        places = example + 1 if self.causal else jnp.full(n, n, example.dtype)
        if not declared(predictor, "traceable"):
            each = [asked(place, query) for place, query in zip(places, prompt.x[:-1], strict=True)]
            return jnp.append(jnp.stack(each), predictor(prompt)[-1])
        return jnp.append(jax.vmap(asked)(places, prompt.x[:-1]), predictor(prompt)[-1])


def probe_layers(
    model: Any,
    algorithm: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    fitting: int = 1024,
    resamples: int = 200,
    block: int = 256,
) -> xr.Dataset:
    r"""How well each layer holds what each step of an algorithm has left of the labels.

    .. math:: R^2_{lk} = 1 - \frac{E\,\bigl(\hat s_l - s_k\bigr)^2}{E\,(s_k - \bar s_k)^2}, \qquad
              s_k = y_i - f_k(x_i) \text{ at examples},\quad \pm f_k(x_q) \text{ at the query}

    for layer l of the network, 0 its embedding, and step k of the algorithm, 0 before the first (:math:`f_0 = 0`).
    :math:`\hat s_l` is the label slot in linear and generalised attention, with nothing fitted. In a transformer it
    is a linear function of the residual stream, fitted by least squares on other prompts; its sign at the query is
    plus. :math:`f_k` is fitted to all examples of the prompt; where a token of the network sees itself and earlier
    examples only, to these. In a network that takes the steps of the algorithm the values at k = l are largest, and 1
    for a construction. A linear probe finds what can be read, which need not be what is used: layer 0, which holds
    the labels alone, is the control.

    Args:
        model: Linear or generalised attention or a transformer, or
            :mod:`several <icllab.diagnostics.predictor_axes>` of one depth. The last block of a transformer has no
            examples.
        algorithm: Algorithm of descent, with :math:`f_k` its first k steps; or the models :math:`f_1, f_2, \dots`
            themselves, as predictors that answer every position.
        task: Task that samples the prompts.
        key: Key of the prompts and of the bootstrap.
        prompts: Number of prompts on which it is judged.
        fitting: Number of prompts on which linear probes are fitted, more than the numbers of one probe.
        resamples: Number of bootstrap resamples of the prompts.
        block: Number of prompts held in memory at once.

    Returns:
        Over the axes of the models, ``layer``, ``algorithm_step`` and ``slot`` (``"example"``, ``"query"``):
        ``r_squared`` with ``r_squared_error``; ``slot_residual``, the root mean square of :math:`\hat s_l - s_k`
        relative to that of the labels. NaN where a layer has no examples, or where there is nothing to explain.
        Attributes: ``probe``, ``"label slot"`` or ``"linear"``.

    Raises:
        InputError: A model is of another kind, models differ in depth, or the algorithm is none.

    Derived: docs/identification.md, A model inside the network.
    """
    axes, models = PredictorAxes.from_predictors(model, "model"), _models(algorithm)
    models = list(
        validate_predictor({f"algorithm[{i}]": one for i, one in enumerate(models)}, task, key=key, level=4).values()
    )
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    judged_on = _Sample(models, task, of_judgement, prompts, block)
    fitted_on = _Sample(models, task, of_fit, fitting, block)
    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = resamplings(prompts, resamples=resamples, seed=seed)
    kinds: list[dict[str, Any]] = []

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        network, causal = _readable(members.member(0))
        linear = isinstance(network, Transformer)
        kinds.append({"probe": "linear" if linear else "label slot", "causal": int(causal)})
        if kinds[-1] != kinds[0]:
            raise expected("model", f"models of one kind, as {kinds[0]}", kinds[-1], "probe them one by one")
        readable = Ensemble(eqx.filter_vmap(lambda one: _readable(one)[0])(members.stacked), members.coordinates)
        streams = judged_on.streams(readable)
        to_fit = fitted_on.streams(readable) if linear else streams
        targets = judged_on.targets(causal)
        of_fitted = fitted_on.targets(causal) if linear else targets
        rows = []
        for i in range(members.size):
            own, other = ([(a[i], b[i]) for a, b in part] for part in (streams, to_fit))
            sign = 1 if linear else network.sign
            found = _explained_by_layers(own, other, targets, of_fitted, weights, sign=sign, linear=linear)
            rows.append((*found[:2], found[2] / float(np.sqrt((judged_on.labels**2).mean()))))
        names = ("r_squared", "r_squared_error", "slot_residual")
        return {name: np.stack(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}

    measured = axes.measure(measure)
    layers, steps = measured["r_squared"].shape[-3:-1]
    slots = {"layer": np.arange(layers), "algorithm_step": np.arange(steps), "slot": ["example", "query"]}
    fitted = {"fitting": fitting} if kinds[0]["probe"] == "linear" else {}
    return axes.to_dataset(measured, slots, prompts=prompts, **kinds[0], **fitted)


def _explained_by_layers(
    streams: list[tuple[np.ndarray, np.ndarray]],
    to_fit: list[tuple[np.ndarray, np.ndarray]],
    targets: tuple[np.ndarray, np.ndarray],
    fitted_targets: tuple[np.ndarray, np.ndarray],
    weights: np.ndarray,
    *,
    sign: int,
    linear: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R², its standard error, and the root mean square of the residual of one network, [layer, step, slot]."""
    shape = (len(streams), targets[0].shape[-1], 2)
    r_squared, errors, residuals = (np.full(shape, np.nan) for _ in range(3))
    for slot in range(2):
        # The query's slot of a construction holds the answer with the sign that it is read with.
        own, fitted = ((sign if slot else 1) * part[slot] for part in (targets, fitted_targets))
        centre = fitted.mean((0, 1))
        for layer, pair in enumerate(streams):
            stream = pair[slot]
            if not stream.size:
                continue
            read = _affine(stream) @ _least_squares(to_fit[layer][slot], fitted) if linear else stream[..., -1:]
            left, total = ((read - own) ** 2).sum(1), ((own - centre) ** 2).sum(1)
            r_squared[layer, :, slot], errors[layer, :, slot] = _explained(left, total, weights)
            residuals[layer, :, slot] = np.sqrt(left.sum(0) / own[..., 0].size)
    return r_squared, errors, residuals


class _Sample:
    """Prompts of one key, and what networks and models make of them."""

    def __init__(self, models: Sequence[Predictor], task: AbstractTask, key: Any, count: int, block: int):
        self._models, self._task, self._key, self._count, self._block = models, task, key, count, block
        self._targets: dict[bool, tuple[np.ndarray, np.ndarray]] = {}

    @functools.cached_property
    def prompts(self) -> Any:
        """The prompts, stacked."""
        return sample_prompts(self._task, key=self._key, prompts=self._count, block=self._block)

    @functools.cached_property
    def labels(self) -> Float[np.ndarray, "prompt example"]:
        """Labels of the examples."""
        return np.asarray(self.prompts.y, float)[:, :-1]

    def streams(self, members: Ensemble) -> list[tuple[np.ndarray, np.ndarray]]:
        """The tokens of the examples and of the query in each layer, [member, prompt, token, feature]."""
        prompt = jax.tree.map(lambda leaf: leaf[0], self.prompts)
        flat = answers_to(Streams(), members, self._task, self.prompts, block=self._block)
        like = jax.tree.leaves(eqx.filter_eval_shape(_streams, members.member(0), prompt))
        flat_parts = np.split(flat, np.cumsum([one.size for one in like])[:-1], axis=-1)
        parts = [part.reshape(*flat.shape[:2], *one.shape) for part, one in zip(flat_parts, like, strict=True)]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def targets(self, causal: bool) -> tuple[np.ndarray, np.ndarray]:
        """What each step has left of the labels of the examples, and says of the query, [prompt, token, step]."""
        if causal not in self._targets:
            asked = (answers_to(Targets(causal), m, self._task, self.prompts, block=self._block) for m in self._models)
            found = np.stack(list(asked), axis=-1)
            # Before the first step the model is zero.
            found = np.concatenate([np.zeros_like(found[..., :1]), found], axis=-1)
            self._targets[causal] = self.labels[..., None] - found[:, :-1], found[:, -1:]
        return self._targets[causal]


def _models(algorithm: Any) -> list[Any]:
    if isinstance(algorithm, Sequence):
        models: list[Any] = [*algorithm]
        if not models or not all(callable(one) and getattr(one, "positions", "every") == "every" for one in models):
            raise expected("algorithm", "models that answer every position, at least one", models)
        return models
    total = algorithm.layers if isinstance(algorithm, Descent | FunctionalDescent) else 1
    return [stopped(algorithm, layers) for layers in range(1, total + 1)]


def _readable(model: Any) -> tuple[Any, bool]:
    """The model with one set of tokens for a prompt, and whether examples see earlier ones only."""
    if isinstance(model, LinearAttention):
        return dataclasses.replace(model, answers="last", form="tokens"), model.causal
    if isinstance(model, GeneralisedAttention):
        return dataclasses.replace(model, answers="last"), False
    if isinstance(model, Transformer):
        arrangement: Any = model.embedding.arrangement
        return model, isinstance(arrangement, Interleaved) or arrangement.causal
    raise expected("model", "LinearAttention, GeneralisedAttention or a Transformer", type(model).__name__)


def _streams(model: Any, prompt: Any) -> list[tuple[Array, Array]]:
    """The examples' tokens in each layer, none where it has dropped them, and the query's."""
    activations = model.trace(prompt).activations
    if not isinstance(model, Transformer):
        layers = [activations["tokens"], *(activations[f"layer{i}"] for i in range(model.layers))]
        return [(tokens[: prompt.length], tokens[-1:]) for tokens in layers]
    layers = [activations["embedding"], *(activations[f"block{i}"] for i in range(len(model.blocks)))]
    examples = slice(1, None, 2) if isinstance(model.embedding.arrangement, Interleaved) else slice(prompt.length)
    return [(t[examples] if len(t) == len(layers[0]) else t[:0], t[-1:]) for t in layers]


def _affine(stream: np.ndarray) -> np.ndarray:
    return np.concatenate([stream, np.ones_like(stream[..., :1])], axis=-1)


def _least_squares(stream: np.ndarray, targets: np.ndarray) -> Float[np.ndarray, "feature step"]:
    features = _affine(stream)
    if features.shape[0] <= features.shape[-1]:
        raise expected("fitting", f"more prompts than the {features.shape[-1]} numbers of a probe", features.shape[0])
    flat = features.reshape(-1, features.shape[-1])
    return np.linalg.lstsq(flat, targets.reshape(len(flat), -1), rcond=None)[0]


def _explained(left: np.ndarray, total: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R² of each step, and its standard error over prompts; NaN where there is nothing to explain."""
    of_left, of_total = weights @ left, weights @ total
    there = of_total[0] > 0
    found = np.where(there, 1 - of_left / np.where(there, of_total, 1.0), np.nan)
    return found[0], found[1:].std(axis=0, ddof=1)
