r"""Items and their labels in context, of known or novel classes, and a query item whose label is asked for.

.. math:: x_1, l_1, \dots, x_N, l_N, x_q \;\mapsto\; l_q, \qquad
          x = \frac{\mu_k + \epsilon\, \eta}{\sqrt{1 + \epsilon^2}}, \quad \mu_k, \eta \sim N(0, I_D / D)

A class k has one label, and the query is of one of the context's classes where a prompt is bursty. So there are two
ways to answer: to find the query's class in the context, and to have the labels of classes in the weights.
"""

import dataclasses
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.domains import FRACTION, NON_NEGATIVE, Domain
from icllab.core.errors import expected, require_flag, require_instance, require_integer, require_key, require_known
from icllab.core.prompt import ItemLabelPrompt
from icllab.tasks.drawn_items import AbstractItems, distinct, inverse, ranks, whole, zipf
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


class ItemLabel(AbstractItems):
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
        novel_classes: Number of classes, a multiple of L, from which those of a novel prompt are drawn with
            replacement, class k with the label k mod L; None: infinitely many (static).
        zipf_without_repeats: Whether classes of a bursty prompt without repeats are drawn from p, not uniformly
            (static).

    Source: [Reddy24].
    """

    conventions: ClassVar[tuple[str, ...]] = ("reddy", "reddy_code")
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
    novel_classes: int | None = eqx.field(static=True, default=None)
    zipf_without_repeats: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        for name in ("pairs", "burstiness", "position_dim"):
            require_integer(name, getattr(self, name))
        for name in ("no_repeats", "swapped", "purged", "zipf_without_repeats"):
            require_flag(name, getattr(self, name))
        pairs, groups = self.pairs, self.pairs // self.burstiness
        if self.labels < 2:
            raise expected("labels", "an integer of at least 2", self.labels)
        if pairs % self.burstiness or groups < 2:
            hint = (
                "a context of one class tells the label without its items"
                if groups == 1 and not pairs % self.burstiness
                else ""
            )
            raise expected("burstiness", f"a divisor of the {pairs} pairs, below {pairs}", self.burstiness, hint)
        if self.position_dim < self.tokens:
            raise expected("position_dim", f"at least {self.tokens}, a position for every token", self.position_dim)
        if self.no_repeats and self.labels < groups:
            requirement = f"at least {groups}, one for each class of a context"
            raise expected("labels", requirement, self.labels, "or no_repeats=False")
        if self.means is not None and self.means.shape[0] % self.labels:
            raise expected("classes", f"a multiple of the {self.labels} labels", self.means.shape[0])
        if self.novel_classes is not None:
            require_integer("novel_classes", self.novel_classes)
            if self.novel_classes % self.labels:
                raise expected("novel_classes", f"a multiple of the {self.labels} labels", self.novel_classes)
        for name in ("zipf_exponent", "within_class_noise"):
            NON_NEGATIVE.require_leaf(name, getattr(self, name))
        if self.means is None:
            requirement = "1 if the number of classes is infinite"
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
        """Draw label vectors and class means; one key gives the same label vectors for any number of classes.

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
        numbers = {"zipf_exponent": zipf_exponent, "within_class_noise": within_class_noise}
        sizes = {"pairs": pairs, "burstiness": burstiness, "position_dim": position_dim, "no_repeats": no_repeats}
        return cls(means=means, label_vectors=vectors, mixture=mixture, **numbers, **sizes)

    @classmethod
    def convention(cls, name: str, *, classes: int | None, key: PRNGKeyArray) -> "ItemLabel":
        r"""The published size, N = 8, L = 32, D = 63, P = 65, drawn by one of two rules.

        ``reddy`` is the stated distribution, that of this class. ``reddy_code`` is that of the code which descends from
        the author's: classes without repeats are drawn uniformly, whatever the Zipf exponent, and novel ones from 128,
        so that with repeats two may be one. ``dataclasses.replace`` sets burstiness, mixture and all else.
        """
        require_known("convention", name, cls.conventions)
        task = cls.init(classes=classes, labels=32, pairs=8, dim=63, position_dim=65, key=key)
        return task if name == "reddy" else dataclasses.replace(task, novel_classes=128, zipf_without_repeats=False)

    @property
    def classes(self) -> int | None:
        """K, the number of classes; None: infinitely many."""
        return None if self.means is None else self.means.shape[0]

    @property
    def width(self) -> int:
        """P + D, the dimension of a token."""
        return self.position_dim + self.dim

    @property
    def frequencies(self) -> Float[Array, " class"]:
        r"""Frequencies of the K classes, :math:`p(k) \propto k^{-\alpha}`, in descending order."""
        return zipf(self._known(), self.zipf_exponent)

    def in_context(self) -> "ItemLabel":
        """IC, the task with novel classes throughout. Only the context knows their labels."""
        return dataclasses.replace(self, mixture=PromptMixture(1.0, 1.0), swapped=False)

    def swapped_labels(self) -> "ItemLabel":
        """IC2, the task with known classes, each with the next label. The context contradicts the weights."""
        self._known()
        return dataclasses.replace(self, mixture=PromptMixture(1.0, 0.0), swapped=True)

    def in_weights(self, *, purged: bool = False) -> "ItemLabel":
        """IW, the task with known classes, and context and query drawn independently.

        Args:
            purged: Whether the query's class is kept out of the context, where it is by chance else.
        """
        self._known()
        return dataclasses.replace(self, mixture=PromptMixture(0.0, 0.0), swapped=False, purged=purged)

    def levels(self) -> Levels:
        """The exact accuracies of four simple predictors on this distribution of prompts. Not traceable."""
        names = ("labels", "pairs", "burstiness", "no_repeats", "swapped", "purged")
        mixture = {name: float(getattr(self.mixture, name)) for name in ("p_bursty", "p_novel")}
        frequencies = None if self.means is None else np.asarray(self.frequencies, float)
        return levels_of(frequencies=frequencies, **mixture, **{name: getattr(self, name) for name in names})

    def _known(self) -> Array:
        if self.means is None:
            raise expected("classes", "a finite number", None, "in_context() has novel classes")
        return self.means

    @property
    def _groups(self) -> int:
        return self.pairs // self.burstiness

    @property
    def _single(self) -> bool:
        """True if every class of a context has exactly one item and appears in no other prompt."""
        return self.means is None and self.burstiness == 1 and self.novel_classes is None

    def _uniforms(self) -> dict[str, int]:
        """Number of uniform draws of a prompt, by purpose."""
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
        """Build a prompt from uniform numbers in [0, 1) and vectors from N(0, I/D)."""
        groups, labels = self._groups, self.labels
        order = jnp.arange(self.pairs) if self._single else ranks(uniform["order"]) // self.burstiness
        slot = whole(uniform["slot"][0], self.pairs)
        group = shown = jnp.append(order, order[slot])
        if self.no_repeats:
            label = distinct(uniform["labels"], jnp.ones(labels, normal.dtype))
        else:
            label = whole(uniform["labels"], self.novel_classes or labels)
            if self.novel_classes is not None:  # a group stands for the first of its class
                shown = jnp.argmax(label[:, None] == label[None], axis=1)[group]
        label, number = label[shown] % labels, -1 - shown
        if self._single:
            items = self._single_items(normal, slot)
        else:
            mean, noise = normal[:groups][shown], normal[groups:]
            if self.means is not None:
                base, novel = self._classes(uniform, group)
                number = jnp.where(novel, number, base)
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
            shift=whole(uniform["shift"][0], self.position_dim - 2 * self.pairs),
            position_dim=self.position_dim,
        )

    def _single_items(self, normal: Array, slot: Array) -> Float[Array, "position dim"]:
        r"""Items of classes that appear once, and a query of one class: :math:`x_q = \rho\,x + \sqrt{1-\rho^2}\,g`."""
        # Two items of one class have the correlation rho = 1 / (1 + epsilon^2): a class's mean is never needed.
        rho = 1 / (1 + self.within_class_noise.astype(normal.dtype) ** 2)
        query = rho * normal[slot] + jnp.sqrt(1 - rho**2) * normal[-1]
        return jnp.concatenate([normal[:-1], query[None]])

    def _classes(self, uniform: dict[str, Array], group: Array) -> tuple[Int[Array, " position"], Bool[Array, ""]]:
        """The class of each item, and whether they are novel."""
        p = self.frequencies
        if self.no_repeats:
            by_label = (p if self.zipf_without_repeats else jnp.ones_like(p)).reshape(-1, self.labels)
            label = distinct(uniform["labels"], jnp.sum(by_label, axis=0))
            among = jnp.cumsum(by_label[:, label], axis=0)
            turn = jnp.sum(among <= (uniform["classes"] * among[-1])[None], axis=0)
            bursty = label + self.labels * jnp.minimum(turn, by_label.shape[0] - 1)
        else:
            bursty = inverse(jnp.cumsum(p), uniform["classes"])
        plain = self._plain(p, uniform["plain"])
        kind = uniform["kind"]
        number = jnp.where(kind[0] < self.mixture.p_bursty.astype(kind.dtype), bursty[group], plain)
        novel = kind[1] < self.mixture.p_novel.astype(kind.dtype)
        return number, novel

    def _plain(self, p: Array, u: Float[Array, " position"]) -> Int[Array, " position"]:
        """Draw classes independently; if ``purged``, the context's classes exclude the query's."""
        below = jnp.cumsum(p)
        if not self.purged:
            return inverse(below, u)
        query = inverse(below, u[-1:])[0]
        # The distribution function without the query's share of it.
        height = u[:-1] * (below[-1] - p[query])
        height = jnp.where(height >= below[query] - p[query], height + p[query], height)
        context = jnp.minimum(jnp.searchsorted(below, height, side="right").astype(int), len(p) - 1)
        # Rounding may still meet it.
        context = jnp.where(context == query, (context + 1) % len(p), context)
        return jnp.append(context, query)
