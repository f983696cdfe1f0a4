"""What a training step of the item-label network costs: ``icl.fit`` against PyTorch, one thread, same process.

    .venv/bin/python bench/induction.py [--sizes reduced,paper] [--no-compile]

Two layers of attention and a classifier on item-label prompts of novel classes, plain gradient descent with decoupled
weight decay, 128 fresh prompts drawn within every step on both sides. PyTorch's rows use its best idioms: one product
for queries, keys and values, fused SGD, only the query's row in the second layer, attention by matrix products or by
scaled_dot_product_attention, torch.compile. The published algorithm is one row; the same re-association that ours
uses, with positions looked up and the means of classes left out of the draw, is another. The logits and gradients of
all are compared at equal weights before anything is timed. Rows of one size run in turn, five rounds; the table has
medians, and ratios are of CPU seconds. Compilation stands beside.

PyTorch is no dependency: .venv/bin/python -m pip install torch==2.13.0
Exit status 1 if a target is missed.
"""

import argparse
import statistics
import sys
from importlib.util import find_spec

import machine

SIZES = {
    "reduced": {"labels": 16, "pairs": 4, "dim": 31},
    "paper": {"labels": 32, "pairs": 8, "dim": 63, "position_dim": 65},
}
TARGET = 2.5  # times PyTorch's best row of the published algorithm, in CPU seconds
ROUNDS, SECONDS, BATCH, RATE, DECAY = 5, 1.0, 128, 0.1, 1e-5  # decay times rate: 1e-6 of every weight, each step
OURS = "icl.fit"
PUBLISHED = ("torch eager", "torch eager, fused attention", "torch.compile")


def law(name):
    """The task of a size."""
    import jax

    from icllab.tasks import ItemLabel

    return ItemLabel.init(classes=None, no_repeats=True, key=jax.random.key(0), **SIZES[name])


def ours(task):
    """The network, and ``run(steps)`` of fit."""
    import equinox as eqx
    import jax
    import optax

    import icllab as icl
    from icllab.models import ItemLabelNetwork

    optimizer = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(RATE))

    model = eqx.filter_jit(lambda key: ItemLabelNetwork.from_task(task, form="reassociated", key=key))(
        jax.random.key(1)
    )

    def run(steps):
        result = icl.fit(model, task, steps=steps, key=jax.random.key(2), batch=BATCH, optimizer=optimizer)
        jax.block_until_ready(jax.tree.leaves(result.members.stacked))

    return model, {OURS: run}


def rival(task, model, compiled):
    """The same in PyTorch: logits and gradients of prompts for each order, and ``run(steps)`` of each row."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F

    labels, pairs, dim, position_dim = task.labels, task.pairs, task.dim, task.position_dim
    width, tokens, eps = task.width, task.tokens, float(task.within_class_noise)
    vectors = torch.from_numpy(np.array(task.label_vectors))
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    step = torch.arange(tokens)

    class Net(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.order = order
            heads = [[np.array(w) for w in (head.query, head.key, head.value)] for head in model.layers]
            self.qkv1 = nn.Parameter(torch.from_numpy(np.concatenate(heads[0], axis=1)))
            self.q2, self.k2, self.v2 = (nn.Parameter(torch.from_numpy(w)) for w in heads[1])
            c = model.classifier
            self.weights = nn.ParameterList(torch.from_numpy(np.array(w)) for w in c.weights)
            self.biases = nn.ParameterList(torch.from_numpy(np.array(b)) for b in c.biases)
            self.readout = nn.Parameter(torch.from_numpy(np.array(c.readout)))

        def read(self, h):
            for weight, bias in zip(self.weights, self.biases, strict=True):
                h = torch.relu(h @ weight + bias)
            return h @ self.readout

        def forward(self, content, place):
            return self.read(getattr(self, self.order)(content, place))

        def tokens(self, content, place):
            return torch.cat([F.one_hot(place, position_dim).to(content.dtype), content], 2)

        def products(self, content, place):
            x = self.tokens(content, place)
            q, k, v = (x @ self.qkv1).split(width, 2)
            scores = (q @ k.transpose(1, 2)).masked_fill(~seen, -torch.inf)
            h = x + scores.softmax(2) @ v
            last = h[:, -1:]
            pattern = ((last @ self.q2) @ (h @ self.k2).transpose(1, 2)).softmax(2)
            return (last + pattern @ (h @ self.v2))[:, 0]

        def fused(self, content, place):
            x = self.tokens(content, place)
            q, k, v = (x @ self.qkv1).split(width, 2)
            attend = F.scaled_dot_product_attention
            h = x + attend(q[:, None], k[:, None], v[:, None], is_causal=True, scale=1.0)[:, 0]
            last = h[:, -1:]
            q, k, v = last @ self.q2, h @ self.k2, h @ self.v2
            return (last + attend(q[:, None], k[:, None], v[:, None], scale=1.0)[:, 0])[:, 0]

        def reassociated(self, content, place):
            """One product a token; rows of the positions are looked up."""
            q1, k1, v1 = self.qkv1.split(width, 1)
            a = q1 @ k1.T
            fixed = tokens == position_dim
            rows = content @ a[position_dim:] + (a[:position_dim] if fixed else F.embedding(place, a[:position_dim]))
            of_place = rows[..., :position_dim]
            if not fixed:
                of_place = of_place.gather(2, place[:, None].expand(-1, tokens, -1))
            scores = (of_place + rows[..., position_dim:] @ content.transpose(1, 2)).masked_fill(~seen, -torch.inf)
            pattern = scores.softmax(2)
            mixed = pattern @ content

            def placed(weights):
                if fixed:
                    return weights
                return weights.new_zeros(len(weights), position_dim).scatter(1, place, weights)

            def here(vector):
                return vector if fixed else vector.gather(1, place)

            query = F.one_hot(step[-1:], tokens).to(content.dtype).expand(len(content), -1)
            own = torch.cat([placed(query), content[:, -1]], 1)
            last = own + torch.cat([placed(pattern[:, -1]), mixed[:, -1]], 1) @ v1
            w = last @ (self.q2 @ self.k2.T)
            u = w @ v1.T
            scores = here(w[:, :position_dim]) + (content @ w[:, position_dim:, None])[..., 0]
            scores = (
                scores + (pattern @ here(u[:, :position_dim])[..., None] + mixed @ u[:, position_dim:, None])[..., 0]
            )
            a2 = scores.softmax(1)[:, None]
            direct = torch.cat([placed(a2[:, 0]), (a2 @ content)[:, 0]], 1)
            through = torch.cat([placed((a2 @ pattern)[:, 0]), (a2 @ mixed)[:, 0]], 1) @ v1
            return last + (direct + through) @ self.v2

    def draw(short):
        label = torch.rand(BATCH, labels).argsort(1)[:, :pairs]
        slot = torch.randint(pairs, (BATCH,))
        every = torch.arange(BATCH)
        if short:  # two items of a class are correlated; its mean is not needed
            normal, rho = torch.randn(BATCH, pairs + 1, dim) / dim**0.5, 1 / (1 + eps**2)
            items, query = normal[:, :-1], rho * normal[every, slot] + (1 - rho**2) ** 0.5 * normal[:, -1]
        else:
            mean, noise = torch.randn(BATCH, pairs, dim) / dim**0.5, torch.randn(BATCH, pairs + 1, dim) / dim**0.5
            scale = (1 + eps**2) ** -0.5
            items, query = (mean + eps * noise[:, :-1]) * scale, (mean[every, slot] + eps * noise[:, -1]) * scale
        content = torch.stack([items, vectors[label]], 2).flatten(1, 2)
        place = torch.randint(position_dim - tokens + 1, (BATCH, 1)) + step
        return torch.cat([content, query[:, None]], 1), place, label[every, slot]

    def idiom(order, make=lambda net: net):
        net = Net(order)
        forward = make(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

        def run(steps):
            for _ in range(steps):
                content, place, target = draw(order == "reassociated")
                loss = F.cross_entropy(forward(content, place), target)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

        return run

    def answers(content, shift, target):
        """Of each order: the logits, and the gradient of the first layer's queries, keys and values."""
        place = torch.from_numpy(np.array(shift)).long()[:, None] + step
        found = {}
        for order in ("products", "fused", "reassociated"):
            net = Net(order)
            logits = net(torch.from_numpy(np.array(content)), place)
            F.cross_entropy(logits, torch.from_numpy(np.array(target)).long()).backward()
            found[order] = logits.detach().numpy(), net.qkv1.grad.numpy()
        return found

    rows = {
        "torch eager": idiom("products"),
        "torch eager, fused attention": idiom("fused"),
        "torch eager, re-associated": idiom("reassociated"),
    }
    if compiled:
        rows["torch.compile"] = idiom("products", torch.compile)
        rows["torch.compile, re-associated"] = idiom("reassociated", torch.compile)
    return answers, rows


def compare(task, model, answers):
    """Refuse to time what does not compute the same."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    prompts = task.sample_many(64, key=jax.random.key(3))

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def both(model):
        logits = jax.vmap(model)(prompts)[:, 0]
        return jnp.mean(jax.vmap(lambda f, p: task.loss(f[None], p)[0])(logits, prompts)), logits

    (_, logits), gradient = both(model)
    head = gradient.layers[0]
    wanted = np.asarray(logits), np.concatenate([np.asarray(w) for w in (head.query, head.key, head.value)], axis=1)
    content = jax.vmap(lambda prompt: prompt.content())(prompts)
    for order, found in answers(content, prompts.shift, prompts.labels[:, -1]).items():
        for name, a, b in zip(("logits", "gradient"), found, wanted, strict=True):
            off = np.abs(a - b).max() / np.abs(b).max()
            assert off < 1e-4, (order, name, off)


def measure(name, compiled):
    """CPU and wall seconds per step of every row, and CPU seconds of its first call."""
    import torch

    torch.set_num_threads(1)
    task = law(name)
    model, rows = ours(task)
    answers, theirs = rival(task, model, compiled)
    compare(task, model, answers)
    rows |= theirs
    return machine.raced(rows, rounds=ROUNDS, seconds=SECONDS)


def table(names, compiled):
    """Print the rows of every size; return the targets that were missed."""
    missed = []
    headers = ("size", "row", "CPU ms/step", "steps/CPU s", "wall ms/step", "first call s", "cost / icl.fit")
    for name in names:
        rows = machine.child(__file__, 1, name, compiled)
        cost = {row: statistics.median(entry["cpu"]) for row, entry in rows.items()}
        lines = []
        for row, entry in rows.items():
            cpu, wall = 1e3 * cost[row], 1e3 * statistics.median(entry["wall"])
            lines.append((name, row, cpu, 1e3 / cpu, wall, entry["first"], cost[row] / cost[OURS]))
        machine.table(lines, headers)
        best = min((cost[row], row) for row in cost if row in PUBLISHED)
        gain = best[0] / cost[OURS]
        if gain < TARGET:
            missed.append(f"{name}: {gain:.2f}x {best[1]}, expected at least {TARGET}x")
    return missed


def main():
    """Print the table, and the targets that are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return machine.answer(arguments.child, measure)
    if find_spec("torch") is None:
        print("PyTorch is missing: .venv/bin/python -m pip install torch==2.13.0", file=sys.stderr)
        return 2
    print(machine.described("jax", "torch"))
    return machine.report(table(arguments.sizes.split(","), not arguments.no_compile))


if __name__ == "__main__":
    sys.exit(main())
