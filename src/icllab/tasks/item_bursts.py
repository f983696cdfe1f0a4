r"""Items and their labels in context, with a burst of the query's class, bursts of distractors, and other items."""

from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import expected, require_flag, require_integer, require_known
from icllab.core.prompt import ItemLabelPrompt
from icllab.tasks.drawn_items import AbstractItems, distinct, inverse, ranks, whole, zipf
from icllab.tasks.regression import number


class ItemBursts(AbstractItems):
    r"""Prompts of N items with their labels and a query; the loss is the cross-entropy of the query's label, in nats.

    Of K classes class k has E exemplars, and the label k mod L. The query's class is drawn from
    :math:`p(k) \propto k^{-\alpha}`, then M distractors one after the other from the classes that have not come yet.
    The context has B items of each of these 1 + M classes, and :math:`N - B(1 + M)` others, all in random order.

    Attributes:
        exemplars: Items of every class, such as ``ItemLabel.init(...).means[:, None]``. A slot shows one of its class,
            drawn uniformly, and noise.
        label_vectors: One of each label.
        pairs: N (static).
        burstiness: B, items of the query's class in its burst (static); 0: it has none.
        distractors: M (static).
        remainder: Classes of the other items. ``"any"``: drawn independently from p; ``"apart"``: from p without the
            1 + M classes; ``"distinct"``: one after the other from the classes that have not come yet (static).
        labelling: ``"known"``; ``"random"``: in every prompt the 1 + M classes of bursts get different labels, drawn
            uniformly from all; ``"flipped"``: the query's class and its only distractor exchange labels (static). The
            target is what the burst shows, and the other items keep their labels.
        matched: Whether all items of a burst, and the query, are the same exemplar (static).
        zipf_exponent: :math:`\alpha`; 0: all classes alike.
        noise_variance: Variance of the noise of every coordinate.

    Source: [Singh24].
    """

    exemplars: Float[Array, "class exemplar dim"]
    label_vectors: Float[Array, "label dim"]
    pairs: int = eqx.field(static=True)
    burstiness: int = eqx.field(static=True, default=1)
    distractors: int = eqx.field(static=True, default=0)
    remainder: str = eqx.field(static=True, default="any")
    labelling: str = eqx.field(static=True, default="known")
    matched: bool = eqx.field(static=True, default=False)
    zipf_exponent: Float[Array, ""] = eqx.field(converter=partial(number, "zipf_exponent"), default=0.0)
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"), default=0.0)

    def __check_init__(self) -> None:
        for name, least in (("pairs", 1), ("burstiness", 0), ("distractors", 0)):
            require_integer(name, getattr(self, name), least=least)
        require_known("remainder", self.remainder, ("any", "apart", "distinct"))
        require_known("labelling", self.labelling, ("known", "random", "flipped"))
        require_flag("matched", self.matched)
        if self.exemplars.ndim != 3 or self.exemplars.shape[2] != self.dim:
            raise expected("exemplars", f"an array [class, exemplar, {self.dim}]", f"shape {self.exemplars.shape}")
        classes, bursts = len(self.exemplars), 1 + self.distractors
        if self.burstiness * bursts > self.pairs:
            requirement = f"at most {self.pairs // bursts}, for {bursts} bursts in {self.pairs} pairs"
            raise expected("burstiness", requirement, self.burstiness)
        if not self.burstiness and (self.distractors or self.labelling != "known"):
            raise expected("burstiness", "at least 1 with distractors, or with labels drawn for each context", 0)
        if self.labelling == "flipped" and self.distractors != 1:
            raise expected("distractors", "1 (the query's class gets its label)", self.distractors)
        least = bursts + (self._rest if self.remainder == "distinct" else min(self._rest, self.remainder == "apart"))
        if classes < least:
            raise expected("exemplars", f"exemplars of at least {least} different classes", f"{classes} classes")
        if self.labelling == "random" and self.labels < bursts:
            raise expected("labels", f"at least {bursts}, one for each burst", self.labels)
        for name in ("zipf_exponent", "noise_variance"):
            NON_NEGATIVE.require_leaf(name, getattr(self, name))

    @property
    def position_dim(self) -> int:
        """P = 2N + 1, one position for each token."""
        return self.tokens

    @property
    def _rest(self) -> int:
        return self.pairs - self.burstiness * (1 + self.distractors)

    def _uniforms(self) -> dict[str, int]:
        bursts, pairs = 1 + self.distractors, self.pairs
        return {"classes": bursts + self._rest, "order": pairs, "labels": bursts, "exemplars": pairs + 1 + bursts}

    def _vectors(self) -> int:
        return self.pairs + 1

    def _made(self, uniform: dict[str, Array], normal: Float[Array, "position dim"]) -> ItemLabelPrompt:
        """Build a prompt from uniform numbers in [0, 1) and vectors from N(0, I/D)."""
        bursts, p = 1 + self.distractors, zipf(self.exemplars, self.zipf_exponent)
        u = uniform["classes"]
        drawn = distinct(u if self.remainder == "distinct" else u[:bursts], p)
        rest = drawn[bursts:]
        if self.remainder != "distinct":
            rest = inverse(jnp.cumsum(p if self.remainder == "any" else p.at[drawn].set(0)), u[bursts:])
        order = ranks(uniform["order"])
        burst = np.append(np.repeat(np.arange(bursts), self.burstiness), np.full(self._rest, bursts))
        burst = jnp.append(jnp.asarray(burst)[order], 0)  # of each slot; the number of bursts: none
        classes = jnp.concatenate([jnp.repeat(drawn[:bursts], self.burstiness), rest])
        classes = jnp.append(classes[order], drawn[0])
        among, within = burst < bursts, jnp.minimum(burst, bursts - 1)
        label = classes % self.labels
        if self.labelling != "known":
            shown = (drawn[:2] % self.labels)[::-1]
            if self.labelling == "random":
                shown = distinct(uniform["labels"], jnp.ones(self.labels, normal.dtype))
            label = jnp.where(among, shown[within], label)
        draw = jnp.where(among & self.matched, self.pairs + 1 + within, jnp.arange(self.pairs + 1))
        which = whole(uniform["exemplars"], self.exemplars.shape[1])[draw]
        spread = jnp.sqrt(self.noise_variance.astype(normal.dtype) * self.dim)
        return ItemLabelPrompt(
            items=self.exemplars[classes, which] + spread * normal,
            label_vectors=self.label_vectors[label[:-1]],
            labels=label,
            classes=classes,
            shift=jnp.zeros((), int),
            position_dim=self.position_dim,
        )
