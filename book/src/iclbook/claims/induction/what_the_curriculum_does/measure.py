"""Item-label networks from one start: with and without labels out of context, and with a readout that is trained."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction.what_the_curriculum_does.claim import EQUAL, FREE, HELD, MASKED, MORE, SHUFFLED
from icllab.core.grid import tabulated
from icllab.tasks import ItemLabel

VERSION = 1

LEARNED, MEMORY = 0.2, 50.0  # nats, averaged over so many steps, where training ends
WITHIN = 0.8  # of the time of the jump


def measure(point, *, key, unmasked=False, shuffled=False, equal=False):
    """Every seed's curves in all arms, which begin with the same network and have the same label vectors.

    ``unmasked``: no logit is masked. ``shuffled``: every readout that is supplied has its entries in a random order.
    ``equal``: the arm with more labels has as many as the others.
    """

    def curves(seed):
        of_test, of_order = jax.random.split(jax.random.fold_in(key, 2**31 + seed))
        begin = _networks.start(seed, key=key, labels=point.label_count, pairs=point.pairs, dim=point.dim)
        task, network = begin.task, begin.network
        equal_task = dataclasses.replace(task, label_vectors=task.label_vectors[: point.pairs])
        equal_network = eqx.tree_at(last_matrix, network, last_matrix(network)[:, : point.pairs])
        arms = {EQUAL: (equal_task, equal_network)}
        arms |= {MORE: arms[EQUAL] if equal else (task, network)}
        arms |= {MASKED: (task if unmasked else among_context(task), network)}
        after = {name: trained(*arms[name], point, begin.of_prompts) for name in point.intervention if name in arms}  # pyright: ignore[reportCallIssue]
        results = {name: measured(networks, arms[name][0], of_test, point.prompts) for name, networks in after.items()}
        for name in {HELD, SHUFFLED, FREE} & set(point.intervention):
            donor = after[MORE][before_the_jump(results[MORE]["accuracy"], point)]
            readout_network = with_reading(equal_network, donor, of_order if shuffled or name == SHUFFLED else None)
            networks = trained(
                equal_task, readout_network, point, begin.of_prompts, free=None if name == FREE else all_else
            )
            results[name] = measured(networks, equal_task, of_test, point.prompts)
        return {
            name: (("intervention", "step"), np.stack([results[arm][name] for arm in point.intervention]))
            for name in ("accuracy", "outside_probability")
        }

    return tabulated(curves, seed=point.seed)


def before_the_jump(accuracy, point):
    """The last kept step within 0.8 of the time of the jump; of all steps where there is none."""
    after = accuracy > (1 + 1 / point.pairs) / 2
    time = point.step[int(np.argmax(after)) if after.any() else -1]
    return int(np.searchsorted(point.step, WITHIN * time, side="right")) - 1


class AmongContext(ItemLabel):
    """A task whose loss and accuracy count the labels of the context alone."""

    def loss(self, prediction, prompt):
        """The cross-entropy of the labels in the context."""
        return super().loss(_masked(prediction, prompt), prompt)

    def accuracy(self, prediction, prompt):
        """Whether the largest logit of the labels in the context is the right one's."""
        return super().accuracy(_masked(prediction, prompt), prompt)


def among_context(task):
    """The task, with labels out of context masked."""
    return AmongContext(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})


def last_matrix(network):
    """The last matrix of the classifier, a column for each label."""
    return network.classifier.readout


def reading(network):
    """Readout of labels: values of the second layer, and the classifier."""
    return network.layers[1].value, network.classifier


def all_else(network):
    """All parameters but the readout."""
    return network.layers[0], network.layers[1].query, network.layers[1].key


def with_reading(network, donor, order=None):
    """The network with the donor's readout, for as many labels as it has; with a key, its entries permuted."""
    parts = reading(eqx.tree_at(last_matrix, donor, last_matrix(donor)[:, : last_matrix(network).shape[1]]))
    if order is not None:
        leaves, shape = jax.tree.flatten(parts)
        keys = jax.random.split(order, len(leaves))
        values = [
            jax.random.permutation(k, leaf.ravel()).reshape(leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
        ]
        parts = jax.tree.unflatten(shape, values)
    return eqx.tree_at(reading, network, parts)


def measured(after, task, key, prompts):
    """The accuracy among the labels of the context after each kept step, and the probability of all others.

    The probability is what the objective leaves to them: none where they are masked.
    """
    accuracy, outside = _measured(*_accuracy.stack(after), task, key, prompts)
    return {"accuracy": np.asarray(accuracy, float), "outside_probability": np.asarray(outside, float)}


@eqx.filter_jit
def _measured(arrays, static, task, key, prompts):
    batch, among = task.sample_many(prompts, key=key), among_context(task)

    def at(step):
        network = eqx.combine(step, static)

        def answer(prompt):
            logits = network(prompt)
            # A difference of cross-entropies of one label: ln of the probability of the context's labels.
            inside = jnp.exp(among.loss(logits, prompt) - task.loss(logits, prompt))
            return among.accuracy(logits, prompt)[-1], 1 - inside[-1]

        rows = jax.lax.map(answer, batch, batch_size=min(_accuracy.TOGETHER, prompts))
        return jax.tree.map(jnp.mean, rows)

    return jax.lax.map(at, arrays)


def _masked(logits, prompt):
    """Logits of labels that the context does not show are as good as minus infinity."""
    present = prompt.labels[:-1, None] == jnp.arange(logits.shape[1], dtype=prompt.labels.dtype)[None]
    return jnp.where(jnp.any(present, axis=0)[None], logits, -1e9)


def trained(task, network, point, key, free=None):
    """The network after each kept step; once training has ended, it stays. ``free``: the parts that are trained."""
    run = _accuracy.train_until(
        task,
        network,
        loss=LEARNED,
        memory=MEMORY,
        steps=max(point.step),
        key=key,
        keep=point.step,
        rate=point.learning_rate,
        batch=point.batch,
        trainable=free,
    )
    return _accuracy.stages(run, point.step)
