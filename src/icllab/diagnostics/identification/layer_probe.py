r"""A probe for a model inside the network that every layer improves.

In a construction the label slot of example i holds, after l layers, the residual :math:`y_i - f_l(x_i)` of its label
after l steps, and the query's slot :math:`-f_l(x_q)`. The probe reads the label slots if a network has them. For a
residual stream it fits a linear map on one set of prompts, and judges it on another.
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
from icllab.core.errors import expected, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractTask, Predictor, declared, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import Question, answers_to, require_unmasked, sample_prompts
from icllab.diagnostics.identification.verdicts import resamplings
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.models.linear.generalised import GeneralisedAttention
from icllab.models.linear.linear_attention import LinearAttention
from icllab.models.networks.embedding import Interleaved
from icllab.models.networks.transformer import Transformer
from icllab.training.ensembles import Ensemble

# Number of axes of a parameter with an axis of layers.
_PER_LAYER = {"rate": 1, "preconditioner": 3, "contraction": 3}


def truncate(algorithm: Any, layers: int) -> Any:
    """Truncate an algorithm of descent to its first steps."""
    if not isinstance(algorithm, Descent | FunctionalDescent):
        raise expected("algorithm", "an algorithm of descent", type(algorithm).__name__)
    if not 1 <= layers <= algorithm.layers:
        raise expected("layers", f"an integer from 1 to {algorithm.layers}", layers)
    parameters = {
        name: getattr(algorithm, name)[:layers]
        for name, axes in _PER_LAYER.items()
        if hasattr(algorithm, name) and getattr(algorithm, name).ndim == axes
    }
    return dataclasses.replace(algorithm, layers=layers, **parameters)


class Streams(Question):
    """Tokens of every layer: of the examples, if the layer has them, then of the query."""

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """Tokens of all layers as one vector."""
        return jnp.concatenate([part.reshape(-1) for pair in _streams(predictor, prompt) for part in pair])


class Targets(Question):
    """Predictions of a model, fitted to the examples, for each example and for the query."""

    causal: bool = eqx.field(static=True)  # whether the fit for an example uses that and earlier ones only

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """One number for each example and one for the query."""
        n = prompt.length

        def answer_at(place: Array, query: Array) -> Array:
            changed_prompt = RegressionPrompt(x=prompt.x.at[place].set(query), y=prompt.y)
            return predictor(changed_prompt)[place if self.causal else -1]

        example = jnp.arange(n)
        places = example + 1 if self.causal else jnp.full(n, n, example.dtype)
        if not declared(predictor, "traceable"):
            answers = [answer_at(place, query) for place, query in zip(places, prompt.x[:-1], strict=True)]
            return jnp.append(jnp.stack(answers), predictor(prompt)[-1])
        return jnp.append(jax.vmap(answer_at)(places, prompt.x[:-1]), predictor(prompt)[-1])


@warns("probe layers")
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
    r"""Measure how well each layer represents the residual labels after each step of an algorithm.

    .. math:: R^2_{lk} = 1 - \frac{E\,\bigl(\hat s_l - s_k\bigr)^2}{E\,(s_k - \bar s_k)^2}, \qquad
              s_k = y_i - f_k(x_i) \text{ at examples},\quad \pm f_k(x_q) \text{ at the query}

    for layer l of the network, 0 its embedding, and step k of the algorithm, 0 before the first (:math:`f_0 = 0`).
    :math:`\hat s_l` is the label slot of linear and generalised attention, without a fit. In a transformer it is a
    linear function of the residual stream, fitted by least squares on other prompts; its sign at the query is plus.
    :math:`f_k` uses all examples of the prompt, or only those that a causal network sees. If the network takes the
    steps of the algorithm, the values at k = l are largest, and 1 for a construction. A linear probe may detect
    information that is not used: layer 0, which holds the labels alone, is the control.

    Args:
        model: Linear or generalised attention or a transformer, or
            :mod:`several <icllab.diagnostics.predictor_axes>` of one depth. The last block of a transformer has no
            examples.
        algorithm: Algorithm of descent, with :math:`f_k` its first k steps; or the models :math:`f_1, f_2, \dots`
            themselves, as predictors that answer every position.
        task: Task that samples the prompts.
        key: Key of the prompts and of the bootstrap.
        prompts: Number of prompts of the result.
        fitting: Number of prompts for the fit of linear probes, more than the parameters of a probe.
        resamples: Number of bootstrap resamples of the prompts.
        block: Number of prompts held in memory at once.

    Returns:
        Over the axes of the models, ``layer``, ``algorithm_step`` and ``slot`` (``"example"``, ``"query"``):
        ``r_squared`` with ``r_squared_error``; ``slot_residual``, the root mean square of :math:`\hat s_l - s_k`
        relative to that of the labels. NaN if a layer has no examples or the target has no variance.
        Attributes: ``probe``, ``"label slot"`` or ``"linear"``.

    Raises:
        InputError: A model is of another kind, models differ in depth, or the algorithm is not one of descent.

    Derived: docs/identification.md, A model inside the network.
    """
    require_task(task)
    require_key(key)
    axes, models = PredictorAxes.from_predictors(model, "model"), _models(algorithm)
    named_models = {f"algorithm[{i}]": predictor for i, predictor in enumerate(models)}
    models = list(validate_predictor(named_models, task, key=key, complaints=axes.warnings).values())
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    test_sample = _Sample(models, task, of_judgement, prompts, block)
    fit_sample = _Sample(models, task, of_fit, fitting, block)
    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = resamplings(prompts, resamples=resamples, seed=seed)
    kinds: list[dict[str, Any]] = []

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        network, causal = _readable(members.member(0))
        linear = isinstance(network, Transformer)
        kinds.append({"probe": "linear" if linear else "label slot", "causal": int(causal)})
        if kinds[-1] != kinds[0]:
            raise expected("model", f"models of one kind, as {kinds[0]}", kinds[-1], "probe them one by one")
        readable = Ensemble(
            eqx.filter_vmap(lambda predictor: _readable(predictor)[0])(members.stacked), members.coordinates
        )
        streams = test_sample.streams(readable)
        to_fit = fit_sample.streams(readable) if linear else streams
        targets = test_sample.targets(causal)
        fit_targets = fit_sample.targets(causal) if linear else targets
        rows = []
        for i in range(members.size):
            test_part, fit_part = ([(a[i], b[i]) for a, b in part] for part in (streams, to_fit))
            sign = 1 if linear else network.sign
            numbers = _explain_layers(test_part, fit_part, targets, fit_targets, weights, sign=sign, linear=linear)
            rows.append((*numbers[:2], numbers[2] / float(np.sqrt((test_sample.labels**2).mean()))))
        names = ("r_squared", "r_squared_error", "slot_residual")
        return {name: np.stack(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}

    arrays = axes.measure(measure)
    layers, steps = arrays["r_squared"].shape[-3:-1]
    slots = {"layer": np.arange(layers), "algorithm_step": np.arange(steps), "slot": ["example", "query"]}
    fit_attributes = {"fitting": fitting} if kinds[0]["probe"] == "linear" else {}
    return axes.to_dataset(arrays, slots, prompts=prompts, **kinds[0], **fit_attributes)


def _explain_layers(
    streams: list[tuple[np.ndarray, np.ndarray]],
    to_fit: list[tuple[np.ndarray, np.ndarray]],
    targets: tuple[np.ndarray, np.ndarray],
    fit_targets: tuple[np.ndarray, np.ndarray],
    weights: np.ndarray,
    *,
    sign: int,
    linear: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R², its standard error, and root mean square of the residual of one network, [layer, step, slot]."""
    shape = (len(streams), targets[0].shape[-1], 2)
    r_squared, errors, residuals = (np.full(shape, np.nan) for _ in range(3))
    for slot in range(2):
        # The query's slot of a construction holds the answer times the sign of its read-out.
        values, fit_values = ((sign if slot else 1) * part[slot] for part in (targets, fit_targets))
        centre = fit_values.mean((0, 1))
        for layer, pair in enumerate(streams):
            stream = pair[slot]
            if not stream.size:
                continue
            read = _affine(stream) @ _least_squares(to_fit[layer][slot], fit_values) if linear else stream[..., -1:]
            squares, total = ((read - values) ** 2).sum(1), ((values - centre) ** 2).sum(1)
            r_squared[layer, :, slot], errors[layer, :, slot] = _r_squared(squares, total, weights)
            residuals[layer, :, slot] = np.sqrt(squares.sum(0) / values[..., 0].size)
    return r_squared, errors, residuals


class _Sample:
    """Prompts of one key, with the tokens of networks and the targets of models."""

    def __init__(self, models: Sequence[Predictor], task: AbstractTask, key: Any, count: int, block: int):
        self._models, self._task, self._key, self._count, self._block = models, task, key, count, block
        self._targets: dict[bool, tuple[np.ndarray, np.ndarray]] = {}

    @functools.cached_property
    def prompts(self) -> Any:
        """The prompts, stacked."""
        prompts = sample_prompts(self._task, key=self._key, prompts=self._count, block=self._block)
        require_unmasked("task", prompts)
        return prompts

    @functools.cached_property
    def labels(self) -> Float[np.ndarray, "prompt example"]:
        """Labels of the examples."""
        return np.asarray(self.prompts.y, float)[:, :-1]

    def streams(self, members: Ensemble) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens of the examples and of the query in each layer, [member, prompt, token, feature]."""
        prompt = jax.tree.map(lambda leaf: leaf[0], self.prompts)
        flat = answers_to(Streams(), members, self._task, self.prompts, block=self._block)
        shapes = jax.tree.leaves(eqx.filter_eval_shape(_streams, members.member(0), prompt))
        flat_parts = np.split(flat, np.cumsum([array.size for array in shapes])[:-1], axis=-1)
        parts = [part.reshape(*flat.shape[:2], *array.shape) for part, array in zip(flat_parts, shapes, strict=True)]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def targets(self, causal: bool) -> tuple[np.ndarray, np.ndarray]:
        """Residual labels of the examples and predictions for the query after each step, [prompt, token, step]."""
        if causal not in self._targets:
            model_answers = (
                answers_to(Targets(causal), m, self._task, self.prompts, block=self._block) for m in self._models
            )
            predictions = np.stack(list(model_answers), axis=-1)
            # The model is zero before the first step.
            predictions = np.concatenate([np.zeros_like(predictions[..., :1]), predictions], axis=-1)
            self._targets[causal] = self.labels[..., None] - predictions[:, :-1], predictions[:, -1:]
        return self._targets[causal]


def _models(algorithm: Any) -> list[Any]:
    if isinstance(algorithm, Sequence):
        models: list[Any] = [*algorithm]
        if not models or not all(
            callable(model) and getattr(model, "positions", "every") == "every" for model in models
        ):
            raise expected("algorithm", "models that answer every position, at least one", models)
        return models
    total = algorithm.layers if isinstance(algorithm, Descent | FunctionalDescent) else 1
    return [truncate(algorithm, layers) for layers in range(1, total + 1)]


def _readable(model: Any) -> tuple[Any, bool]:
    """The model in a form with one set of tokens for each prompt, and whether it is causal."""
    if isinstance(model, LinearAttention):
        return dataclasses.replace(model, answers="last", form="tokens"), model.causal
    if isinstance(model, GeneralisedAttention):
        return dataclasses.replace(model, answers="last"), False
    if isinstance(model, Transformer):
        arrangement: Any = model.embedding.arrangement
        return model, isinstance(arrangement, Interleaved) or arrangement.causal
    raise expected("model", "LinearAttention, GeneralisedAttention or a Transformer", type(model).__name__)


def _streams(model: Any, prompt: Any) -> list[tuple[Array, Array]]:
    """Tokens of the examples, empty in a layer without them, and the token of the query, for each layer."""
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


def _r_squared(residual: np.ndarray, total: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R² of each step and its standard error over prompts; NaN for a constant target."""
    residual_means, total_means = weights @ residual, weights @ total
    is_defined = total_means[0] > 0
    values = np.where(is_defined, 1 - residual_means / np.where(is_defined, total_means, 1.0), np.nan)
    return values[0], values[1:].std(axis=0, ddof=1)
