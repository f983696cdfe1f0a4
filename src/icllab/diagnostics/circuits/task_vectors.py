r"""Task vectors: what few-shot examples leave in the stream, put into prompts without examples.

Three ways to read the task of a table from few-shot prompts, at the last token before the answer (the query):

- ``"stream"``: the mean stream :math:`\bar h^{(l)}` after block l takes the place of the stream;
- ``"heads"``: the sum of the mean outputs of the heads whose mean outputs help shuffled prompts most is added to it;
- ``"regression"``: :math:`W h` is added to it, with the ridge regression of the effect of the examples
  :math:`h_{\text{few}} - h_{\text{zero}}` on :math:`h = h_{\text{zero}}`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core import progress
from icllab.core.errors import expected, require_instance, require_integer, require_key, require_known
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.head_effects import head_effects
from icllab.diagnostics.circuits.block_runs import embedded, most_at_once, passed, read_out, recorded
from icllab.diagnostics.circuits.logit_attribution import require_sums
from icllab.diagnostics.circuits.texts import transformer_of
from icllab.models.networks.dense import wide
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.ignored_fields import names_ignored
from icllab.tasks.few_shot import EMPTY, FewShot, FewShotPrompt

METHODS = ("stream", "heads", "regression")
PARTS = 3  # of a table: for the vectors, for the choice of a block, and for the test
RIDGE = 0.01  # of the mean square of the streams
SCREENED = 16  # shuffled prompts that rank the heads
MEASURES = ("accuracy", "log_likelihood")


@warns("task vector", "chosen_log_likelihood", "chosen_log_likelihood_error")
@names_ignored
def task_vector(
    lm: Any,
    few_shot: Any,
    *,
    layers: Any,
    key: PRNGKeyArray,
    method: str = "stream",
    other: Any = None,
    prompts: int = 120,
    heads: int = 8,
) -> xr.Dataset:
    """Answers to prompts without examples, with the task vector of few-shot prompts after one block.

    The pairs of the table are split into thirds: vectors come from prompts of the first alone, the best block is chosen
    on the second, and what is reported is measured on the third. The thirds are exchanged until each pair has been
    tested, and new splits are drawn until there are enough prompts.

    Args:
        lm: Language model of :func:`~icllab.models.pretrained.language_model.open`, or a
            :class:`~icllab.models.networks.transformer.Transformer` of token ids.
        few_shot: Task with right labels and at least one shot.
        layers: Numbers of the blocks after which the vector is put in.
        key: Key of splits and examples.
        method: ``"stream"``, ``"heads"`` or ``"regression"``.
        other: Another task of the same tokenizer, whose vector is a control; None: without this control.
        prompts: Least number of tested prompts.
        heads: Number of heads of ``"heads"``.

    Returns:
        Over ``vector`` and ``block``: ``accuracy`` and ``log_likelihood`` of the answers in nats, and their gains over
        no vector, ``_gain``. Vectors are ``"none"``, ``"right"``, the control ``"shuffled"`` (of prompts with shuffled
        labels), the control ``"other"``, and ``"examples"``, the prompt with its examples instead of a vector.
        ``chosen_`` has each vector at its chosen block, and ``_advantage`` what the right vector has more than it.
        ``chosen_share`` is how often a block was chosen, ``head_share`` a head. Each mean has an ``_error`` over pairs
        and splits. ``direction`` is the right vector, a mean over splits.

    Raises:
        InputError: The table is too small for three parts, labels are not right, or a block or name is unknown;
            ``"heads"`` of a model in which norms follow what a block adds.

    Source: the sum of heads [Todd24]. The mean stream is that of Hendel et al. (arXiv:2310.15916), the regression that
    of Kwon et al. (arXiv:2605.20730), here for any layer; their full texts were not available.
    """
    model, layers = transformer_of(lm), _known_layers(transformer_of(lm), layers)
    require_key(key)
    require_known("method", method, METHODS)
    for name, value in (("prompts", prompts), ("heads", heads)):
        require_integer(name, value)
    tasks = {"right": few_shot} | ({} if other is None else {"other": other})
    for name, task in zip(("few_shot", "other"), tasks.values(), strict=False):
        _require_task(name, task, model)
    if method == "heads":
        require_sums(model)
    pairs = len(few_shot.classes)
    rounds = -(-prompts // pairs)
    progress.stage("task vectors", rounds * PARTS, "splits")
    outcomes, finds = [], []
    for number in range(rounds):
        of_parts, of_rounds = jax.random.split(jax.random.fold_in(key, number))
        parts = {name: _parts(task, of_parts) for name, task in tasks.items()}
        for turn in range(PARTS):
            turned = {name: part[turn:] + part[:turn] for name, part in parts.items()}
            found = _Split(model, tasks, turned, layers, method, heads, jax.random.fold_in(of_rounds, turn))
            outcomes.append((turned["right"], found.scores()))
            finds.append(found)
            progress.advance()
    dataset = _dataset(outcomes, layers, pairs)
    shares = np.mean([[name in found.heads for name in _names(finds)] for found in finds], axis=0)
    if method == "heads":
        dataset = dataset.assign(head_share=("attention_head", shares)).assign_coords(attention_head=_names(finds))
    if method != "regression":
        direction = np.mean([[found.vectors["right"][layer] for layer in layers] for found in finds], axis=0)
        dataset["direction"] = ("block", "width"), direction
    return dataset.assign_attrs(prompts=rounds * pairs, method=method)


def _known_layers(model: Transformer, layers: Any) -> list[int]:
    layers = [layers] if np.ndim(layers) == 0 else list(layers)
    for layer in layers:
        require_integer("layers", layer, least=0)
    if not layers or max(layers) >= len(model.blocks) or len(set(layers)) < len(layers):
        raise expected("layers", f"different numbers of blocks from 0 to {len(model.blocks) - 1}", layers)
    return layers


def _require_task(name: str, task: Any, model: Transformer) -> None:
    require_instance(name, task, FewShot, "tasks.FewShot.from_pairs(pairs, tokenizer, shots=8)")
    if task.labels != "right" or not task.shots:
        raise expected(name, 'labels="right" and at least one shot', f"{task.labels!r} and {task.shots}")
    if task.vocabulary != model.embedding.arrangement.outputs:
        outputs = model.embedding.arrangement.outputs
        raise expected(f"vocabulary of {name}", f"{outputs}, as the model has", task.vocabulary, "from_pairs has it")
    smallest = len(task.classes) // PARTS
    if smallest < task.shots + 2:
        hint = f"{PARTS * (task.shots + 2)} pairs would do, or fewer shots"
        raise expected(name, f"at least {task.shots + 2} pairs in each third of the table", smallest, hint)


def _parts(task: FewShot, key: PRNGKeyArray) -> list[np.ndarray]:
    """Three parts of a table's pairs, at random, with the answers of the table equally often where they repeat."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    classes = np.asarray(task.classes)
    order = np.lexsort((rng.random(len(classes)), rng.permutation(classes.max() + 1)[classes]))
    return [np.sort(order[first::PARTS]) for first in range(PARTS)]


class _Split:
    """Vectors of one split of the tables, and the answers with them."""

    def __init__(
        self,
        model: Transformer,
        tasks: Mapping[str, FewShot],
        parts: Mapping[str, list[np.ndarray]],
        layers: list[int],
        method: str,
        heads: int,
        key: PRNGKeyArray,
    ):
        self.model, self.task, self.parts, self.layers = model, tasks["right"], parts["right"], layers
        self.of_examples, of_vectors, of_heads = jax.random.split(key, 3)
        self.heads: list[str] = []
        self.replaces = method == "stream"
        sources = {name: (task, parts[name][0]) for name, task in tasks.items()}
        sources["shuffled"] = dataclasses.replace(self.task, labels="shuffled"), self.parts[0]
        runs = {name: self._few_shot_runs(*source, of_vectors) for name, source in sources.items()}
        if method == "stream":
            self.vectors = {name: _mean_streams(streams) for name, (streams, _) in runs.items()}
        elif method == "heads":
            self.heads = self._best_heads(runs["right"][1], heads, of_heads)
            sums = {name: self._sum_of_heads(outputs) for name, (_, outputs) in runs.items()}
            self.vectors = {name: dict.fromkeys(layers, total) for name, total in sums.items()}
        else:
            plain = {name: self._at_query(_without_examples(*source))[0] for name, source in sources.items()}
            self.vectors = {name: _maps(plain[name], streams) for name, (streams, _) in runs.items()}
        self.names = [name for name in ("right", "shuffled", "other") if name in runs]

    def _few_shot_runs(self, task: FewShot, pairs: np.ndarray, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Streams by layer, and outputs of heads by block, at the queries of few-shot prompts of some pairs."""
        return self._at_query(_with_examples(task, pairs, pairs, key))

    def _at_query(self, prompts: FewShotPrompt) -> tuple[dict[int, np.ndarray], list[np.ndarray]]:
        rows = _queries(prompts)
        streams: dict[int, list] = {layer: [] for layer in self.layers}
        outputs: list[list] = [[] for _ in self.model.blocks]
        for part in _blocks(self.model, prompts):
            x = embedded(self.model, prompts.tokens[part, :-1])
            for i, block in enumerate(self.model.blocks):
                sites = recorded(block, self.model.embedding.arrangement, x)
                x, at = sites["residual"], (np.arange(len(x)), rows[part])
                outputs[i].append(np.asarray(sites["heads"][at]))
                if i in streams:
                    streams[i].append(np.asarray(x[at]))
        joined = {layer: np.concatenate(values) for layer, values in streams.items()}
        return joined, [np.concatenate(values) for values in outputs]

    def _best_heads(self, outputs: list[np.ndarray], count: int, key: PRNGKeyArray) -> list[str]:
        """Names of the heads whose mean outputs lower the loss of shuffled prompts most, to first order."""
        pairs = jnp.asarray(self.parts[0])
        task = dataclasses.replace(
            self.task, questions=self.task.questions[pairs], classes=self.task.classes[pairs], labels="shuffled"
        )
        means = [jnp.asarray(part.mean(0)) for part in outputs]
        effects = head_effects(self.model, task, key=key, prompts=SCREENED, outputs=means, tokens=_is_query)
        series = effects.first_order_effect
        return [str(name) for name in series.attention_head.values[np.argsort(series.values)[:count]]]

    def _sum_of_heads(self, outputs: list[np.ndarray]) -> Float[np.ndarray, " width"]:
        places = [tuple(map(int, name.removeprefix("block").split("."))) for name in self.heads]
        weights = {i: np.asarray(wide(self.model.blocks[i].attention.output)) for i, _ in places}
        return np.sum([outputs[i][:, head].mean(0) @ weights[i][head] for i, head in places], axis=0)

    def scores(self) -> dict[str, np.ndarray]:
        """Accuracy and log-likelihood [measure, vector, layer, pair] of the second part and of the third."""
        scores = {}
        for name, pairs in zip(("choice", "test"), self.parts[1:], strict=True):
            tables = [self._scores_without_examples(pairs)]
            if name == "test":
                prompts = _with_examples(self.task, pairs, self.parts[0], self.of_examples)
                ends = [
                    self._run(embedded(self.model, prompts.tokens[p, :-1]), -1) for p in _blocks(self.model, prompts)
                ]
                shown = self._scored(jnp.concatenate(ends), prompts)
                tables.append(np.broadcast_to(shown[:, None, None], (2, 1, *tables[0].shape[2:])))
            scores[name] = np.concatenate(tables, axis=1)
        return scores

    def _run(self, x: Array, block: int) -> Array:
        """The stream after the last block, from the stream after a block; -1 is the embedding."""
        for later in self.model.blocks[block + 1 :]:
            x = passed(later, self.model.embedding.arrangement, x)
        return x

    def _scores_without_examples(self, pairs: np.ndarray) -> Float[np.ndarray, "measure vector layer pair"]:
        """Scores of the queries alone, without a vector and with each vector after each layer."""
        prompts = _without_examples(self.task, pairs)
        rows = _queries(prompts)
        at, x = (np.arange(len(pairs)), rows), embedded(self.model, prompts.tokens[:, :-1])
        tables: dict[int, np.ndarray] = {}
        for i, block in enumerate(self.model.blocks):
            x = passed(block, self.model.embedding.arrangement, x)
            if i in self.layers:
                columns = []
                for name in self.names:
                    vector = self.vectors[name][i]
                    moved = np.asarray(x[at]) @ vector if vector.ndim == 2 else vector
                    moved = jnp.broadcast_to(jnp.asarray(moved, x.dtype), x[at].shape)
                    put = x.at[at].set(moved) if self.replaces else x.at[at].add(moved)
                    columns.append(self._scored(self._run(put, i), prompts))
                tables[i] = np.stack(columns, axis=1)
        plain = self._scored(x, prompts)
        vectors = np.stack([tables[layer] for layer in self.layers], axis=2)
        none = np.broadcast_to(plain[:, None, None], (2, 1, *vectors.shape[2:]))
        return np.concatenate([none, vectors], axis=1)

    def _scored(self, x: Array, prompts: FewShotPrompt) -> Float[np.ndarray, "measure pair"]:
        """Accuracy and log-likelihood of the answers, from the stream after the last block."""
        assert prompts.answer is not None
        width, rows = self.task.answers.shape[1], _queries(prompts)
        places = np.minimum(rows[:, None] + np.arange(width), x.shape[1] - 1)  # padding counts nowhere
        pairs = np.arange(len(rows))[:, None]
        real = np.asarray(prompts.answer)[pairs, places + 1] & (rows[:, None] + np.arange(width) < x.shape[1])
        targets, streams = np.asarray(prompts.tokens)[pairs, places + 1], x[pairs, places]
        size = most_at_once(self.model, 1, width)
        parts = [_graded(self.model, streams[i : i + size], targets[i : i + size]) for i in range(0, len(rows), size)]
        hits, logs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return np.stack([np.where(real, hits, True).all(1), np.where(real, logs, 0).sum(1)])


def _graded(model: Transformer, streams: Array, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which targets have the largest logit, and their log-probabilities."""
    logits = np.asarray(read_out(model, streams.reshape(-1, streams.shape[-1])), np.float64).reshape(*targets.shape, -1)
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return logits.argmax(-1) == targets, chosen - np.log(np.exp(logits).sum(-1))


def _queries(prompts: FewShotPrompt) -> np.ndarray:
    """Positions of the last tokens before the answers."""
    return np.asarray(prompts.answer).argmax(1) - 1


def _is_query(prompt: Any) -> Array:
    return jnp.arange(prompt.positions) == prompt.query


def _names(splits: Sequence[Any]) -> list[str]:
    return sorted({name for split in splits for name in split.heads})


def _with_examples(task: FewShot, queries: np.ndarray, pool: np.ndarray, key: PRNGKeyArray) -> FewShotPrompt:
    """Prompts of the queries after examples of the pool; every source of a vector has the same draws."""
    return _drawn(task, jnp.asarray(queries), jnp.asarray(pool), jax.random.split(jax.random.clone(key), len(queries)))


@eqx.filter_jit
def _drawn(task: FewShot, queries: Array, pool: Array, keys: Array) -> FewShotPrompt:
    return jax.vmap(lambda query, key: task.prompt_after(query, pool, key=key))(queries, keys)


def _without_examples(task: FewShot, queries: np.ndarray) -> FewShotPrompt:
    """Prompts of the queries alone, of one length."""
    sizes = [(np.asarray(part) != EMPTY).sum(1).max() for part in (task.questions, task.answers)]
    tokens = len(task.beginning) + len(task.prefix) + int(sum(sizes))
    alone = dataclasses.replace(task, shots=0, labels="right", balanced=False, tokens=tokens)
    keys = jax.random.split(jax.random.key(0), len(queries))  # which nothing uses: there are no examples
    return _drawn(alone, jnp.asarray(queries), jnp.zeros(0, jnp.int32), keys)


def _blocks(model: Transformer, prompts: FewShotPrompt) -> list[slice]:
    """Slices of prompts that fit in memory together."""
    count, tokens = prompts.tokens.shape
    size = min(count, most_at_once(model, tokens))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _mean_streams(streams: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    return {layer: values.mean(0) for layer, values in streams.items()}


def _maps(plain: dict[int, np.ndarray], shown: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Matrices [width, width] by layer: the ridge regression of the effect of examples on the stream without them."""
    maps = {}
    for layer, before in plain.items():
        h = before.astype(np.float64)
        gram = h @ h.T
        kernel = gram + RIDGE * np.trace(gram) / len(h) * np.eye(len(h))
        maps[layer] = h.T @ np.linalg.solve(kernel, shown[layer] - h)
    return maps


def _dataset(
    outcomes: list[tuple[list[np.ndarray], dict[str, np.ndarray]]], layers: list[int], pairs: int
) -> xr.Dataset:
    """Means with errors over pairs and splits; each pair is tested equally often."""
    count = outcomes[0][1]["choice"].shape[1] - 1  # vectors beside none
    vectors = [*("none", "right", "shuffled", "other")[: count + 1], "examples"]
    tested = np.full((len(outcomes), len(MEASURES), len(vectors), len(layers), pairs), np.nan)
    chosen = np.full((len(outcomes), len(MEASURES), len(vectors), pairs), np.nan)
    best = np.zeros((len(outcomes), len(vectors)), int)
    for number, (parts, scores) in enumerate(outcomes):
        tested[number][..., parts[2]] = scores["test"]
        best[number, :-1] = scores["choice"][1].mean(-1).argmax(-1)  # by nats, on the pairs of the choice
        for vector, layer in enumerate(best[number]):
            chosen[number, :, vector] = tested[number, :, vector, layer]
    dataset = xr.Dataset(coords={"vector": vectors, "block": layers})
    for i, measure in enumerate(MEASURES):
        for name, values in ((measure, tested[:, i]), (f"chosen_{measure}", chosen[:, i])):
            dims = ("vector", "block")[: values.ndim - 2]
            tables = {"": values, "_gain": values - values[:, :1]}
            tables |= {"_advantage": values[:, 1:2] - values} if name != measure else {}
            for suffix, table in tables.items():
                mean, error = _mean_and_error(table)
                dataset[f"{name}{suffix}"], dataset[f"{name}{suffix}_error"] = (dims, mean), (dims, error)
    shares = [(best[:, 1 : count + 1] == place).mean(0) for place in range(len(layers))]
    dataset["chosen_share"] = ("vector", "block"), np.full((len(vectors), len(layers)), np.nan)
    dataset["chosen_share"][1 : count + 1] = np.transpose(shares)
    advantage = dataset.chosen_log_likelihood_advantage.sel(vector="shuffled").item()
    error = dataset.chosen_log_likelihood_advantage_error.sel(vector="shuffled").item()
    text = (
        f"the right vector is worth {advantage:.2g} ± {error:.1g} nats more than that of shuffled prompts: "
        "it need not carry the task"
    )
    return dataset.assign_attrs(warnings=[] if advantage > 2 * error else [text])


def _mean_and_error(samples: Float[np.ndarray, "split *rest pair"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over tested pairs, and an error that adds the variances over pairs and over splits."""
    mean = np.nanmean(samples, axis=(0, -1))
    of_pairs, of_splits = np.nanmean(samples, axis=0), np.moveaxis(np.nanmean(samples, axis=-1), 0, -1)
    errors = [part.std(-1, ddof=1) / part.shape[-1] ** 0.5 for part in (of_pairs, of_splits)]
    return mean, np.hypot(*errors)
