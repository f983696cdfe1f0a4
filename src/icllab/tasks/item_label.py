r"""Items and their labels in context, of classes that may be known, and an item whose label is asked for.

.. math:: x_1, l_1, \dots, x_N, l_N, x_q \;\mapsto\; l_q, \qquad
          x = \frac{\mu_k + \epsilon\, \eta}{\sqrt{1 + \epsilon^2}}, \quad \mu_k, \eta \sim N(0, I_D / D)

A class k has one label, and the query is of one of the context's classes where a prompt is bursty. So there are two
ways to answer: to find the query's class in the context, and to have the labels of classes in the weights.
"""

import abc
import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.domains import FRACTION, NON_NEGATIVE, Domain
from icllab.core.draws import uniform_and_normal
from icllab.core.errors import expected, require_flag, require_instance, require_integer, require_key
from icllab.core.prompt import ItemLabelPrompt
from icllab.tasks.classification import AbstractClassification
from icllab.tasks.item_label_levels import Levels, levels_of
from icllab.tasks.regression import number


class PromptMixture(eqx.Module):
    r"""Probabilities of the kinds of prompts: novel with :math:`p_C`, bursty with :math:`(1 - p_C)\,p_B`, else plain.

    Attributes:
        p_bursty: :math:`p_B`, probability that a prompt which is not novel is bursty; a leaf, from 0 to 1.
        p_novel: :math:`p_C`, probability that a prompt has classes made up for it; a leaf, from 0 to 1.
    """

    p_bursty: Float[Array, ""] = eqx.field(converter=partial(number, "p_bursty"), default=1.0)
    p_novel: Float[Array, ""] = eqx.field(converter=partial(number, "p_novel"), default=0.0)

    def __check_init__(self) -> None:
        for name in ("p_bursty", "p_novel"):
            FRACTION.require_leaf(name, getattr(self, name))


class AbstractItemLabels(AbstractClassification):
    """A task of item-label prompts, drawn many at once."""

    def targets(self, prompt: ItemLabelPrompt) -> Int[Array, " position"]:
        """The label of each item."""
        return prompt.labels

    def sample(self, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """One prompt of N pairs and a query."""
        require_key(key)
        return jax.tree.map(lambda part: part[0], self.sample_many(1, key=key))

    @abc.abstractmethod
    def sample_many(self, count: int, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """Draw ``count`` prompts, stacked, with all random numbers in one call."""


class ItemLabel(AbstractItemLabels):
    r"""Prompts of N items with their labels and a query; the loss is the cross-entropy of the query's label, in nats.

    There are L labels, whose vectors are drawn once from :math:`N(0, I_D/D)`, and K classes with means drawn once from
    the same distribution; class k has the label k mod L. A prompt is one of three kinds:

    - with probability :math:`p_C` *novel*: N/B classes are made up for it, with fresh means and labels drawn uniformly;
    - else with probability :math:`p_B` *bursty*: N/B classes are drawn from :math:`p(k) \propto k^{-\alpha}`;
    - else *plain*: the classes of all items, the query's too, are drawn independently from p.

    In the first two kinds every class has B items, in random order, and the query is a further item of a class whose
    slot in the context is drawn uniformly. With ``no_repeats`` their classes have different labels: one after the other
    is drawn from p among those whose label has not come yet. The first token stands at a place drawn uniformly from 0
    to P - 2N - 1.

    Attributes:
        means: :math:`\mu_k`, or None where there are infinitely many classes: every prompt is novel.
        label_vectors: One of each label.
        mixture: :math:`p_B` and :math:`p_C`.
        zipf_exponent: :math:`\alpha` of the classes' frequencies; 0: all alike.
        within_class_noise: :math:`\epsilon`, a standard deviation relative to that of the class means: how much items
            of a class differ.
        pairs: N (static).
        burstiness: B (static), a divisor of N below N.
        position_dim: P (static), at least 2N + 1.
        no_repeats: Whether the classes of a novel or bursty prompt have different labels (static).
        swapped: Whether every label is replaced by the next, l + 1 mod L, in the context and as the target (static).
        purged: Whether a plain context is drawn from the classes other than the query's (static).

    Source: [Reddy24].
    """

    means: Float[Array, "class dim"] | None
    label_vectors: Float[Array, "label dim"]
    mixture: PromptMixture
    zipf_exponent: Float[Array, ""] = eqx.field(converter=partial(number, "zipf_exponent"))
    within_class_noise: Float[Array, ""] = eqx.field(converter=partial(number, "within_class_noise"))
    pairs: int = eqx.field(static=True)
    burstiness: int = eqx.field(static=True)
    position_dim: int = eqx.field(static=True)
    no_repeats: bool = eqx.field(static=True)
    swapped: bool = eqx.field(static=True, default=False)
    purged: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        for name in ("pairs", "burstiness", "position_dim"):
            require_integer(name, getattr(self, name))
        for name in ("no_repeats", "swapped", "purged"):
            require_flag(name, getattr(self, name))
        pairs, groups = self.pairs, self.pairs // self.burstiness
        if self.labels < 2:
            raise expected("labels", "an integer of at least 2", self.labels)
        if pairs % self.burstiness or groups < 2:
            hint = "a context of one class needs no look" if groups == 1 and not pairs % self.burstiness else ""
            raise expected("burstiness", f"a divisor of the {pairs} pairs, below {pairs}", self.burstiness, hint)
        if self.position_dim < self.tokens:
            raise expected("position_dim", f"at least {self.tokens}, a place for every token", self.position_dim)
        if self.no_repeats and self.labels < groups:
            requirement = f"at least {groups}, different ones for all classes of a context"
            raise expected("labels", requirement, self.labels, "or no_repeats=False")
        if self.means is not None and self.means.shape[0] % self.labels:
            raise expected("classes", f"a multiple of the {self.labels} labels", self.means.shape[0])
        for name in ("zipf_exponent", "within_class_noise"):
            NON_NEGATIVE.require_leaf(name, getattr(self, name))
        if self.means is None:
            requirement = "1 where classes are infinitely many"
            Domain(least=1, most=1, text=requirement).require_leaf("p_novel", self.mixture.p_novel, "give classes=")

    @classmethod
    def init(
        cls,
        *,
        classes: int | None,
        labels: int,
        pairs: int,
        dim: int,
        position_dim: int | None = None,
        burstiness: int = 1,
        mixture: PromptMixture | None = None,
        zipf_exponent: float = 0.0,
        within_class_noise: float = 0.1,
        no_repeats: bool = False,
        key: PRNGKeyArray,
    ) -> "ItemLabel":
        """Label vectors and means drawn once; the same label vectors for one key whatever the number of classes.

        Arguments are the fields, and K ``classes`` (a multiple of L; None: infinitely many), L ``labels`` and ``dim``
        D. ``position_dim=None`` has one for each token, 2N + 1. ``mixture=None`` has bursty prompts alone, and novel
        ones where classes are infinitely many. Numbers that do not fit each other raise an ``InputError``.
        """
        for name, value in (("labels", labels), ("pairs", pairs), ("dim", dim)):
            require_integer(name, value)
        if mixture is not None:
            require_instance("mixture", mixture, PromptMixture, "one such as PromptMixture(p_bursty=0.5), or None")
        require_key(key)
        of_labels, of_means = jax.random.split(key)
        means = None
        if classes is not None:
            require_integer("classes", classes)
            means = jax.random.normal(of_means, (classes, dim)) / dim**0.5
        vectors = jax.random.normal(of_labels, (labels, dim)) / dim**0.5
        mixture = PromptMixture(p_novel=float(classes is None)) if mixture is None else mixture
        position_dim = 2 * pairs + 1 if position_dim is None else position_dim
        return cls(
            means, vectors, mixture, zipf_exponent, within_class_noise, pairs, burstiness, position_dim, no_repeats
        )

    @property
    def classes(self) -> int | None:
        """K; None: infinitely many."""
        return None if self.means is None else self.means.shape[0]

    @property
    def labels(self) -> int:
        """L."""
        return self.label_vectors.shape[0]

    @property
    def class_count(self) -> int:
        """L, the number of labels."""
        return self.labels

    @property
    def dim(self) -> int:
        """D, the dimension of a token's content."""
        return self.label_vectors.shape[1]

    @property
    def length(self) -> int:
        """Pairs before the query, N."""
        return self.pairs

    @property
    def tokens(self) -> int:
        """T = 2N + 1."""
        return 2 * self.pairs + 1

    @property
    def width(self) -> int:
        """P + D, the dimension of a token."""
        return self.position_dim + self.dim

    @property
    def frequencies(self) -> Float[Array, " class"]:
        r"""Frequencies of the K classes, :math:`p(k) \propto k^{-\alpha}`, from the most frequent on."""
        rank = jnp.arange(1, self._known().shape[0] + 1, dtype=self.label_vectors.dtype)
        weight = rank ** -self.zipf_exponent.astype(rank.dtype)
        return weight / jnp.sum(weight)

    def in_context(self) -> "ItemLabel":
        """IC: novel classes throughout. Only the context knows their labels."""
        return dataclasses.replace(self, mixture=PromptMixture(1.0, 1.0), swapped=False)

    def swapped_labels(self) -> "ItemLabel":
        """IC2: known classes, and every label replaced by the next. The context contradicts the weights."""
        self._known()
        return dataclasses.replace(self, mixture=PromptMixture(1.0, 0.0), swapped=True)

    def in_weights(self, *, purged: bool = False) -> "ItemLabel":
        """IW: known classes, context and query drawn independently.

        Args:
            purged: Whether the query's class is kept out of the context, where it is by chance else.
        """
        self._known()
        return dataclasses.replace(self, mixture=PromptMixture(0.0, 0.0), swapped=False, purged=purged)

    def levels(self) -> Levels:
        """The exact accuracies of four ways to answer, on this distribution of prompts. Not traceable."""
        names = ("labels", "pairs", "burstiness", "no_repeats", "swapped", "purged")
        mixture = {name: float(getattr(self.mixture, name)) for name in ("p_bursty", "p_novel")}
        frequencies = None if self.means is None else np.asarray(self.frequencies, float)
        return levels_of(frequencies=frequencies, **mixture, **{name: getattr(self, name) for name in names})

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """Draw ``count`` prompts, stacked, with all random numbers in one call."""
        require_key(key)
        return _many(self, count, key)

    def _known(self) -> Array:
        if self.means is None:
            raise expected("classes", "a finite number of them", None, "novel ones: in_context()")
        return self.means

    @property
    def _groups(self) -> int:
        return self.pairs // self.burstiness

    @property
    def _single(self) -> bool:
        """Whether every class of a context has one item, and no other prompt has the class."""
        return self.means is None and self.burstiness == 1

    def _uniforms(self) -> dict[str, int]:
        """Numbers of uniform draws of a prompt, by purpose."""
        sizes = {"slot": 1, "shift": 1, "labels": self._groups}
        if not self._single:
            sizes |= {"order": self.pairs}
        if self.means is not None:
            sizes |= {"kind": 2, "classes": self._groups, "plain": self.pairs + 1}
        return sizes

    def _vectors(self) -> int:
        """Number of normal vectors of a prompt."""
        return self.pairs + 1 + (0 if self._single else self._groups)

    def _made(self, uniform: dict[str, Array], normal: Float[Array, "vector dim"]) -> ItemLabelPrompt:
        """A prompt made of uniform numbers in [0, 1) and of vectors from N(0, I/D)."""
        groups, labels = self._groups, self.labels
        order = jnp.arange(self.pairs) if self._single else _ranks(uniform["order"]) // self.burstiness
        slot = _whole(uniform["slot"][0], self.pairs)
        group = jnp.append(order, order[slot])
        if self.no_repeats:
            label = _distinct(uniform["labels"], jnp.ones(labels, normal.dtype))
        else:
            label = _whole(uniform["labels"], labels)
        label, number = label[group], -1 - group
        if self._single:
            items = self._single_items(normal, slot)
        else:
            mean, noise = normal[:groups][group], normal[groups:]
            if self.means is not None:
                number, novel = self._classes(uniform, group)
                label = jnp.where(novel, label, number % labels)
                mean = jnp.where(novel, mean, self.means[jnp.maximum(number, 0)])
            eps = self.within_class_noise.astype(normal.dtype)
            items = (mean + eps * noise) / jnp.sqrt(1 + eps**2)
        if self.swapped:
            label = (label + 1) % labels
        return ItemLabelPrompt(
            items=items,
            label_vectors=self.label_vectors[label[:-1]],
            labels=label,
            classes=number,
            shift=_whole(uniform["shift"][0], self.position_dim - 2 * self.pairs),
            position_dim=self.position_dim,
        )

    def _single_items(self, normal: Array, slot: Array) -> Float[Array, "position dim"]:
        r"""Items of classes that come once, and a query of one: :math:`x_q = \rho\, x + \sqrt{1 - \rho^2}\, g`."""
        # Two items of one class have the correlation rho = 1 / (1 + epsilon^2): a class's mean is never needed.
        rho = 1 / (1 + self.within_class_noise.astype(normal.dtype) ** 2)
        query = rho * normal[slot] + jnp.sqrt(1 - rho**2) * normal[-1]
        return jnp.concatenate([normal[:-1], query[None]])

    def _classes(self, uniform: dict[str, Array], group: Array) -> tuple[Int[Array, " position"], Bool[Array, ""]]:
        """The class of each item, and whether they are novel."""
        p = self.frequencies
        if self.no_repeats:
            by_label = p.reshape(-1, self.labels)
            label = _distinct(uniform["labels"], jnp.sum(by_label, axis=0))
            among = jnp.cumsum(by_label[:, label], axis=0)
            turn = jnp.sum(among <= (uniform["classes"] * among[-1])[None], axis=0)
            bursty = label + self.labels * jnp.minimum(turn, by_label.shape[0] - 1)
        else:
            bursty = _inverse(jnp.cumsum(p), uniform["classes"])
        plain = self._plain(p, uniform["plain"])
        kind = uniform["kind"]
        number = jnp.where(kind[0] < self.mixture.p_bursty.astype(kind.dtype), bursty[group], plain)
        novel = kind[1] < self.mixture.p_novel.astype(kind.dtype)
        return jnp.where(novel, -1 - group, number), novel

    def _plain(self, p: Array, u: Float[Array, " position"]) -> Int[Array, " position"]:
        """Classes drawn independently; purged, those of the context from what p leaves without the query's."""
        below = jnp.cumsum(p)
        if not self.purged:
            return _inverse(below, u)
        query = _inverse(below, u[-1:])[0]
        # The distribution function without the query's share of it.
        height = u[:-1] * (below[-1] - p[query])
        height = jnp.where(height >= below[query] - p[query], height + p[query], height)
        context = jnp.minimum(jnp.searchsorted(below, height, side="right").astype(int), len(p) - 1)
        # Rounding may still meet it.
        context = jnp.where(context == query, (context + 1) % len(p), context)
        return jnp.append(context, query)


@eqx.filter_jit
def _many(task: ItemLabel, count: int, key: PRNGKeyArray) -> ItemLabelPrompt:
    """Compiled: called as it is, every operation would be compiled by itself."""
    sizes, dtype, vectors = task._uniforms(), task.label_vectors.dtype, task._vectors()
    numbers = sum(sizes.values())
    uniform, normal = uniform_and_normal(count, numbers, vectors * task.dim, dtype=dtype, key=key)
    parts = jnp.split(uniform, np.cumsum(list(sizes.values()))[:-1].tolist(), axis=1)
    normal = normal.reshape(count, vectors, task.dim) / task.dim**0.5
    return jax.vmap(task._made)(dict(zip(sizes, parts, strict=True)), normal)


def _whole(u: Array, count: int) -> Int[Array, "..."]:
    """Whole numbers from 0 to ``count`` - 1."""
    return jnp.minimum((u * count).astype(int), count - 1)


def _ranks(u: Float[Array, " slot"]) -> Int[Array, " slot"]:
    """A random order: the rank of each of some uniform numbers, of equal ones the first first."""
    before = np.tril(np.ones((len(u), len(u)), bool), -1)
    return jnp.sum((u[None] < u[:, None]) | ((u[None] == u[:, None]) & before), axis=1)


def _inverse(below: Float[Array, " class"], u: Float[Array, " draw"]) -> Int[Array, " draw"]:
    """Draws from a distribution by the inverse of its distribution function."""
    index = jnp.searchsorted(below, u * below[-1], side="right").astype(int)
    return jnp.minimum(index, below.shape[0] - 1)


def _distinct(u: Float[Array, " draw"], weights: Float[Array, " label"]) -> Int[Array, " draw"]:
    """Labels drawn one after the other, each with odds by weight among those that have not come yet."""
    labels: list[Array] = []
    for i in range(len(u)):
        below = jnp.cumsum(weights)
        labels.append(jnp.minimum(jnp.sum(below <= u[i] * below[-1]), len(weights) - 1))
        weights = jnp.where(jnp.arange(len(weights)) == labels[-1], 0, weights)
    return jnp.stack(labels)
