"""What a training step costs: ``icl.fit`` against a jitted optax step in a Python loop, and against PyTorch.

    .venv/bin/python bench/training.py [--threads 1,2] [--shapes tiny16,...] [--rounds 5] [--no-compile]

GPT-2 on interleaved tokens of a linear regression, Adam, fresh prompts drawn within every step on both sides. The
PyTorch rows use its best idioms: scaled-dot-product attention, one product for queries, keys and values, foreach and
fused Adam, and torch.compile. Rows of a shape run in turn; the table has medians over rounds. On one thread ratios are
of CPU seconds; on several they are of wall seconds, and ``icl.fit(devices=)`` has a device for each thread.
PyTorch is optional (torch==2.13.0). Exit status 1 if a target is missed.
"""

import argparse
import statistics
import sys
from importlib.util import find_spec

import machine

# dim, length, width, heads, layers, batch; least speed relative to PyTorch's best row, on one thread and on two.
SHAPES = {
    "tiny16": ((8, 8, 16, 1, 1, 64), 1.6, 1.0),
    "tiny32": ((8, 16, 32, 2, 2, 64), 1.6, 1.5),
    "small64": ((8, 15, 64, 2, 2, 256), 1.0, 1.0),
}
SECONDS, MEMBERS = 1.0, 8
FIT, LOOP = "icl.fit", "jitted step, Python loop"
ENSEMBLES = {mode: f"{MEMBERS} members, {mode}, each" for mode in ("map", "vmap")}


def fit_rows(shape, devices):
    """``run(steps)`` of fit, of a jitted step in a Python loop and of ensembles; the number of parameters."""
    import equinox as eqx
    import jax
    import optax

    import icllab as icl
    from icllab.models import Transformer
    from icllab.tasks import LinearRegression
    from icllab.training import Sweep

    dim, length, width, heads, layers, batch = shape
    task = LinearRegression.convention("raventos", dim=dim, length=length)
    optimizer = optax.adam(1e-3)

    def build(*, key):
        return Transformer.raventos(dim=dim, length=length, width=width, heads=heads, layers=layers, key=key)

    model = eqx.filter_jit(build)(key=jax.random.key(0))
    members = icl.ensemble(build, seeds=MEMBERS, key=jax.random.key(0))

    def fit(predictor, mode):
        def run(steps):
            shared = {"batch": batch, "optimizer": optimizer, "devices": devices}
            icl.fit(predictor, task, steps=steps, key=jax.random.key(1), sweep=Sweep(mode=mode), **shared)

        return run

    @eqx.filter_jit
    def step(params, static, state, key):
        def loss(params):
            predictor = eqx.combine(params, static)
            prompts = jax.vmap(lambda k: task.sample(key=k))(jax.random.split(key, batch))
            return jax.vmap(lambda prompt: task.loss(predictor(prompt), prompt))(prompts).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state, value

    def loop(steps):
        params, static = eqx.partition(model, eqx.is_inexact_array)
        state, key = optimizer.init(params), jax.random.key(1)
        for i in range(steps):
            params, state, value = step(params, static, state, jax.random.fold_in(key, i))
        jax.block_until_ready(value)

    rows = {FIT: fit(model, "map"), LOOP: loop} | {row: fit(members, mode) for mode, row in ENSEMBLES.items()}
    return rows, sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def torch_rows(shape, size, compile, threads):
    """The same network in PyTorch, of ``size`` parameters: ``run(steps)`` of each idiom."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    dim, length, width, heads, layers, batch = shape
    tokens = 2 * length + 1
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()[::2]

    class Block(nn.Module):
        def __init__(self, last):
            super().__init__()
            self.last = last
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n = len(x)
            q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            if self.last:  # as ours: only what is read
                values, x = F.scaled_dot_product_attention(q[:, :, ::2], k, v, attn_mask=mask), x[:, ::2]
            else:
                values = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(values.transpose(1, 2).reshape(n, -1, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Linear(dim + 1, width), nn.Parameter(torch.zeros(tokens, width))
            self.blocks = nn.ModuleList(Block(i == layers - 1) for i in range(layers))
            self.norm, self.read = nn.LayerNorm(width), nn.Linear(width, 1)

        def forward(self, x, y):
            pairs = torch.stack([F.pad(x, (0, 1)), F.pad(y[..., None], (dim, 0))], 2)
            h = self.embed(pairs.flatten(1, 2)[:, :-1]) + self.place
            for block in self.blocks:
                h = block(h)
            return self.read(self.norm(h))[..., 0]

    def idiom(transform=lambda net: net, **adam):
        net = Net()
        assert sum(weights.numel() for weights in net.parameters()) == size
        forward, optimizer = transform(net), torch.optim.Adam(net.parameters(), lr=1e-3, **adam)

        def run(steps):
            for _ in range(steps):
                x, w = torch.randn(batch, length + 1, dim), torch.randn(batch, dim, 1)
                y = (x @ w)[..., 0] + 0.5 * torch.randn(batch, length + 1)
                optimizer.zero_grad(set_to_none=True)
                ((forward(x, y) - y) ** 2).mean().backward()
                optimizer.step()

        return run

    rows = {"torch eager, foreach Adam": idiom(foreach=True), "torch eager, fused Adam": idiom(fused=True)}
    return rows | ({"torch.compile, fused Adam": idiom(torch.compile, fused=True)} if compile else {})


def measure(name, threads, compile, rounds):
    """CPU and wall seconds of a step of every row, and seconds of its first call."""
    from icllab.training import split_processor

    split_processor(threads)
    shape = SHAPES[name][0]
    rows, size = fit_rows(shape, threads)
    rows |= torch_rows(shape, size, compile, threads) if find_spec("torch") else {}
    times = machine.raced(rows, rounds=rounds, seconds=SECONDS, clock="wall")
    for row in ENSEMBLES.values():
        for clock in ("cpu", "wall"):
            times[row][clock] = [value / MEMBERS for value in times[row][clock]]
    return times


def table(names, threads, compile, rounds):
    """Print the rows of every shape; return the targets that were missed."""
    misses, clock = [], "cpu" if threads == 1 else "wall"
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads > 1 else {}  # a thread is a device
    print()
    for name in names:
        rows = machine.child(__file__, threads, name, threads, compile, rounds, **flags)
        lines = []
        for row, times in rows.items():
            cpu, wall = (1e3 * statistics.median(times[kind]) for kind in ("cpu", "wall"))
            lines.append((name, row, cpu, wall, times["first"]))
        machine.table(lines, (f"threads {threads}", "row", "CPU ms/step", "wall ms/step", "first call s"))
        peers = [row for row in rows if row.startswith("torch")]
        best = min(peers, key=lambda row: statistics.median(rows[row][clock]), default=LOOP)
        target = SHAPES[name][min(threads, 2)] if peers else 1.0
        speed = statistics.median(b / a for a, b in zip(rows[FIT][clock], rows[best][clock], strict=True))
        print(f"{name:<9} {FIT}: {speed:.2f}x {best}, target {target}x", flush=True)
        if speed < target:
            misses.append(f"{name}, {threads} threads: {speed:.2f}x {best}, expected at least {target}x")
    return misses


def main():
    """Print the tables, and the targets that are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, comma-separated")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return machine.answer(arguments.child, measure)
    print(machine.described("jax"))
    misses, shapes, compile = [], arguments.shapes.split(","), not arguments.no_compile
    for threads in map(int, arguments.threads.split(",")):
        misses += table(shapes, threads, compile, arguments.rounds)
    return machine.report(misses)


if __name__ == "__main__":
    sys.exit(main())
