"""What claims train on and what they judge on, watched from outside: which prompts, and from which weights seeds start.

While :func:`watched` is entered, every training run gives the prompts of its first step (of a fixed set all) and its
initial parameters by member, and every question that diagnostics put to predictors the prompts it is asked on. The
values themselves are compared: which keys they come from does not matter. Predictors that a claim asks by functions of
its own are not seen.
"""

import contextlib
import itertools
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.diagnostics.behaviour import answers
from icllab.training import fitting

SHARED = 0.5  # share of prompts in common from which two sets are one; sequences of few tokens coincide by chance


@dataclass
class Uses:
    """Sets of prompts, each as the set of its rows' bytes."""

    trained: list[set[bytes]] = field(default_factory=list)
    held_out: list[set[bytes]] = field(default_factory=list)
    judged: list[set[bytes]] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What no claim may do: judge on what it trains on, or give two seeds the same start or the same prompts."""
        found = list(self.alike)
        for name, other in (("held out", self.held_out), ("judged on", self.judged)):
            pairs = itertools.product(self.trained, other)
            if any(_share(one, two) > SHARED for one, two in pairs):
                found.append(f"prompts that are trained on are {name}")
        return sorted(set(found))


@contextlib.contextmanager
def watched():
    """The :class:`Uses` of what runs inside, in this process."""
    uses, train, asked = Uses(), fitting.train, answers._answer_block

    def watching_train(plan, **how):
        _note(uses, plan)
        return train(plan, **how)

    def watching_answers(question, predictor, task, prompts, count):
        uses.judged.append(_rows(prompts, count))
        return asked(question, predictor, task, prompts, count)

    fitting.train, answers._answer_block = watching_train, watching_answers
    try:
        yield uses
    finally:
        fitting.train, answers._answer_block = train, asked


def _note(uses, plan):
    seeds, swept = np.asarray(plan.members.coordinates["seed"]), dict(plan.members.coordinates)
    others = np.stack([np.asarray(values) for name, values in swept.items() if name != "seed"] or [0 * seeds], axis=1)
    data = plan.program.data if plan.constants.data is None else plan.constants.data
    first = eqx.filter_jit(lambda program, own: program.prompts_at(own, jnp.int32(0)))
    starts, prompts = _rows(plan.params, plan.members.size, each=True), []
    for i in range(plan.members.size):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], plan.constants)
        whole = data if plan.constants.data is None else own.data
        prompts.append(_rows(first(plan.program, own) if whole is None else whole))
    uses.trained += prompts
    if plan.held_out is not None:
        held_out = plan.held_out
        if plan.record.shared is None:  # each member has its own
            held_out = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), held_out)
        uses.held_out.append(_rows(held_out))
    for i, j in itertools.combinations(range(plan.members.size), 2):
        if seeds[i] == seeds[j] or not np.array_equal(others[i], others[j]):
            continue
        if starts[i] == starts[j]:
            uses.alike.append("two seeds start from the same parameters")
        if (data is None or plan.constants.data is not None) and _share(prompts[i], prompts[j]) > SHARED:
            uses.alike.append("two seeds are trained on the same prompts")


def _rows(tree, count=None, each=False):
    """The bytes of every element of the leading axis, all leaves together; a set, or ``each`` in its order."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]
    count = len(leaves[0]) if count is None else count
    rows = [b"".join(leaf[i].tobytes() for leaf in leaves) for i in range(count)]
    return rows if each else set(rows)


def _share(one, two):
    return len(one & two) / max(1, min(len(one), len(two)))
