r"""Items and their labels in context; the relation of items to labels differs from prompt to prompt.

.. math:: x_1, \pi(l_1), \dots, x_N, \pi(l_N), x_q \;\mapsto\; \pi(l_q)

with :math:`l_k` the label that :class:`~icllab.tasks.ItemLabel` gives an item and :math:`\pi` a permutation of the
labels, the *relation*. Where relations are few, a prompt can be answered by recognising which one it shows; where each
prompt has a relation of its own, only by looking the query up in the context. A *symmetric* relation, such as
"marries", divides the labels into couples; the context then answers the converse of each of its pairs too.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_integer, require_key
from icllab.core.prompt import ItemLabelPrompt
from icllab.core.vocabularies import in_vocabulary
from icllab.tasks.drawn_items import AbstractItemLabels
from icllab.tasks.item_label import ItemLabel


class LabelRelations(AbstractItemLabels):
    """Prompts of an :class:`ItemLabel` whose labels go through a relation, which is the same throughout one prompt.

    The relation of a prompt is drawn uniformly from M of them, or from all L! permutations where there is no table.

    Attributes:
        items: Bursty prompts of known classes whose labels differ.
        table: The relations, each a permutation of the labels; None: every prompt draws its own.
        unseen: Whether the query is replaced by an item of a class drawn uniformly from those whose label under no
            relation is in the context (static).
        symmetric: Whether every prompt's own relation divides the labels into couples (static).
        converse: Whether the query is replaced by the partner of an item of the context (static).
    """

    items: ItemLabel
    table: Int[Array, "relation label"] | None
    unseen: bool = eqx.field(static=True, default=False)
    symmetric: bool = eqx.field(static=True, default=False)
    converse: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.items.means is None:
            raise expected("items", "a task of finitely many classes", "infinitely many", "give classes=")
        if not self.items.no_repeats or self.items.burstiness != 1 or self.items.swapped:
            raise expected("items", "a task with no_repeats, burstiness 1, and labels not swapped", "another")
        if self.table is not None and self.table.shape[1] != self.items.labels:
            raise expected("table", f"{self.items.labels} labels in every row", self.table.shape[1])
        if isinstance(self.table, jax.Array):
            in_vocabulary("table", self.table, self.items.labels)
        if self.unseen and self.items.labels == self.items.pairs:
            raise expected(
                "labels",
                f"more than the {self.items.pairs} pairs",
                self.items.labels,
                "an unseen query needs one more item",
            )
        if self.symmetric and self.items.labels % 2:
            raise expected("labels", "an even number, for couples", self.items.labels)
        if self.converse and (self.unseen or not self.symmetric):
            raise expected("converse", "False, unless relations are symmetric and queries seen", True)

    @classmethod
    def init(
        cls, items: ItemLabel, relations: int | None, *, rows: int = 0, symmetric: bool = False, key: PRNGKeyArray
    ) -> "LabelRelations":
        """Draw relations uniformly; the first relations of a key are the same for any number of them.

        ``relations`` is M; None: every prompt has its own. They are repeated until there are so many ``rows``, a
        multiple of M: the same distribution in a table of another shape. ``symmetric`` relations are couples.

        Raises:
            InputError: M does not divide ``rows``, or the items are not of known classes with different labels.
        """
        require_instance("items", items, ItemLabel, "an ItemLabel task")
        if relations is None:
            return cls(items, None, symmetric=symmetric)
        require_integer("relations", relations)
        require_integer("rows", rows, least=0)
        require_key(key)
        if rows and rows % relations:
            raise expected("rows", f"a multiple of the {relations} relations", rows)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(relations))
        table = jax.vmap(lambda relation_key: jax.random.permutation(relation_key, items.labels))(keys)
        table = jax.vmap(_couples)(table) if symmetric else table
        return cls(items, jnp.tile(table, (max(1, rows // relations), 1)), symmetric=symmetric)

    @property
    def length(self) -> int:
        """Pairs before the query, N."""
        return self.items.pairs

    @property
    def class_count(self) -> int:
        """L, the number of labels."""
        return self.items.labels

    def new_relations(self) -> "LabelRelations":
        """The same items, with a new relation for every prompt."""
        return dataclasses.replace(self, table=None)

    def unseen_items(self) -> "LabelRelations":
        """The same relations, with a query whose item is not in the context."""
        return dataclasses.replace(self, unseen=True)

    def converses(self) -> "LabelRelations":
        """The same symmetric relations, with the partner of an item of the context as the query."""
        return dataclasses.replace(self, converse=True)

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """Draw ``count`` prompts, stacked, with all random numbers in one call."""
        require_key(key)
        of_items, of_relations, of_class, of_noise = jax.random.split(key, 4)
        prompts = self.items.sample_many(count, key=of_items)
        labels, dim, dtype = self.items.labels, self.items.dim, self.items.label_vectors.dtype
        if self.table is None:
            relations = jnp.argsort(jax.random.uniform(of_relations, (count, labels), dtype), axis=1)
            relations = jax.vmap(_couples)(relations) if self.symmetric else relations
        else:
            relations = self.table[jax.random.randint(of_relations, (count,), 0, self.table.shape[0])]
        if self.unseen:
            uniform = jax.random.uniform(of_class, (count, 2), dtype)
            noise = jax.random.normal(of_noise, (count, dim), dtype) / dim**0.5
            prompts = jax.vmap(self._unseen)(prompts, uniform, noise)
        elif self.converse:
            partners = relations[jnp.arange(count), prompts.labels[:, -1]]
            noise = jax.random.normal(of_noise, (count, dim), dtype) / dim**0.5
            prompts = jax.vmap(self._asked)(prompts, partners, partners, noise)
        return jax.vmap(self._related)(prompts, relations)

    def _related(self, prompt: ItemLabelPrompt, relation: Int[Array, " label"]) -> ItemLabelPrompt:
        labels = relation[prompt.labels]
        return dataclasses.replace(prompt, labels=labels, label_vectors=self.items.label_vectors[labels[:-1]])

    def _unseen(
        self, prompt: ItemLabelPrompt, uniform: Float[Array, " two"], noise: Float[Array, " dim"]
    ) -> ItemLabelPrompt:
        """The prompt with a query whose item is not in the context, before any relation."""
        assert self.items.means is not None
        labels, classes = self.items.labels, self.items.means.shape[0]
        left = jnp.all(jnp.arange(labels)[:, None] != prompt.labels[None, :-1], axis=1)
        rank = (uniform[0] * (labels - self.items.pairs)).astype(int)
        label = jnp.argmax(left & (jnp.cumsum(left) - 1 >= rank))
        number = label + labels * (uniform[1] * (classes // labels)).astype(int)
        return self._asked(prompt, label, number, noise)

    def _asked(self, prompt: ItemLabelPrompt, label: Array, number: Array, noise: Array) -> ItemLabelPrompt:
        """The prompt with an item of the class ``number`` as the query, before any relation."""
        assert self.items.means is not None
        eps = self.items.within_class_noise.astype(noise.dtype)
        query = (self.items.means[number] + eps * noise) / jnp.sqrt(1 + eps**2)
        return dataclasses.replace(
            prompt,
            items=prompt.items.at[-1].set(query),
            labels=prompt.labels.at[-1].set(label.astype(prompt.labels.dtype)),
            classes=prompt.classes.at[-1].set(number.astype(prompt.classes.dtype)),
        )


def _couples(permutation: Int[Array, " label"]) -> Int[Array, " label"]:
    """The symmetric relation whose couples are consecutive entries of a permutation."""
    return jnp.zeros_like(permutation).at[permutation].set(permutation[jnp.arange(len(permutation)) ^ 1])
