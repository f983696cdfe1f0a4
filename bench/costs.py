"""What a cell of three claims costs, counted from its sizes, beside the CPU seconds that it takes.

    .venv/bin/python bench/costs.py [--rounds 3]

Of loops that XLA runs, operations and bytes are those of one pass through the body, as XLA counts them in the compiled
program (``cost_analysis``), times the passes. Of ``double_descent``, whose solver is LAPACK's, they are counted by
hand: a normal number is taken for a hundred operations. Seconds are CPU time on one thread of the second of two equal
calls, so without compilation; the least of all rounds, since other programs only add to it.

Each claim has two constants, operations a second and what a pass costs whatever its size, from its smallest and its
largest size. Exit status 1 if they are off by more than a factor of two at one of the three sizes between.
"""

import argparse
import os
import sys
import time
from types import SimpleNamespace

import machine

WITHIN = 2.0
NORMAL = 100
"""Operations that a normal number is taken for: twenty rounds of threefry and an inverse error function."""


def double_descent(dim):
    """Eight fits at half as many contexts as parameters, by a Cholesky factor of the kernel."""
    from icllab.claims.asymptotics.double_descent.measure import measure

    point = SimpleNamespace(dim=dim, tau=0.5, alpha=10.0, kappa=0.5, rho=0.01, seed=tuple(range(8)))
    contexts, tokens = round(0.5 * dim * (dim + 1)), 10 * dim
    drawn = contexts * tokens * dim * (NORMAL + 4)
    solved = 4 * contexts**2 * dim + contexts**3 / 3
    size = 8 * (contexts * tokens * dim + 3 * contexts**2)
    return measure, point, len(point.seed) * (drawn + solved), len(point.seed) * size


def cliff(pairs):
    """Eight hundred steps of descent from four starts at three rates, before any ends."""
    import jax.numpy as jnp
    import numpy as np

    from icllab.claims.induction.cliff import measure as file

    rates, starts = (0.2, 0.1, 0.05), (0.001, 0.002, 0.003, 0.004)
    point = SimpleNamespace(pairs=pairs, attention="causal", label_count=4 * pairs, rate=rates, start=starts)
    point.time, point.loss_level, point.strength = tuple(2.0 * i for i in range(66)), (0.9, 0.5), file.STRENGTHS
    point.horizon = point.saddle_horizon = 40.0
    begin = np.asarray(starts)[:, None] + np.zeros(3)
    arguments = (begin, np.asarray(rates), np.asarray(point.time), np.asarray(point.loss_level), 40.0)
    body = file.descended.lower(*arguments, True, float(4 * pairs), pairs=pairs).compile().cost_analysis()
    passes = round(40.0 / min(rates))
    assert jnp.isfinite(body["flops"])
    return file.measure, point, passes * body["flops"], passes * body["bytes accessed"]


def softmax_depth_limit(dim):
    """256 layers of three attentions on 64 prompts, in two settings, two seeds."""
    import jax
    import jax.numpy as jnp

    from icllab.claims.descent.softmax_depth_limit import claim
    from icllab.claims.descent.softmax_depth_limit import measure as file
    from icllab.tasks import FunctionRegression, SphereInputs

    names = (claim.KEYS, claim.QUERIES, claim.EXPONENTIAL)
    point = SimpleNamespace(dim=dim, temperature=0.5, step_size=0.3, prompts=64, predictor=names)
    point.setting, point.seed, point.layers = ("random", "even"), (0, 1), (256,)
    law = {"kernel": "exponential", "temperature": 0.5}
    task = FunctionRegression(dim, 2 * dim - 1, SphereInputs(1.0), noise_variance=0.0, **law)
    prompts = file.drawn(task, False, jax.random.split(jax.random.key(0), 64))
    flops = size = 0.0
    for name in names:
        layer = file.layer_of(name, point, 1.0)
        program = file.deeper.lower(layer, prompts, jnp.zeros_like(prompts.y[:, -1]), jnp.asarray(256)).compile()
        body = program.compiled.cost_analysis()
        body = body[0] if isinstance(body, list) else body
        flops, size = flops + 4 * 256 * body["flops"], size + 4 * 256 * body["bytes accessed"]
    return file.measure, point, flops, size


CLAIMS = {double_descent: (16, 20, 28, 36, 44), cliff: (8, 12, 16, 24, 32), softmax_depth_limit: (4, 6, 8, 12, 16)}
PASSES = {double_descent: 8, cliff: 800, softmax_depth_limit: 3072}
"""Of each claim at every size: fits, steps of descent, layers."""


def seconds(measure, point, rounds):
    """The least CPU time of a call that compiles nothing."""
    import jax

    key, times = jax.random.key(0), []
    for _ in range(1 + rounds):
        begun = time.process_time()
        jax.block_until_ready(measure(point, key=key))
        times.append(time.process_time() - begun)
    return min(times[1:])


def main():
    """Print the table; the exit status says whether a model was off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ |= machine.environment(1)
    import jax

    jax.config.update("jax_enable_x64", True)
    print(machine.described("jax", "jaxlib", "numpy"))
    print(f"{'claim':22}{'size':>6}{'GFLOP':>9}{'GB':>8}{'model s':>9}{'CPU s':>8}{'ratio':>7}")
    off = []
    for claim, sizes in CLAIMS.items():
        rows = []
        for size in sizes:
            measure, point, flops, moved = claim(size)
            rows.append((size, flops, moved, seconds(measure, point, arguments.rounds)))
        (_, least, _, short), (_, most, _, long) = rows[0], rows[-1]
        rate = (most - least) / (long - short)
        fixed = short - least / rate
        for size, flops, moved, took in rows:
            model = fixed + flops / rate
            between = size not in (sizes[0], sizes[-1])
            ratio = f"{model / took:7.2f}" if between else f"{'':7}"
            print(f"{claim.__name__:22}{size:6d}{flops / 1e9:9.3f}{moved / 1e9:8.2f}{model:9.3f}{took:8.3f}{ratio}")
            off += [f"{claim.__name__} at {size}"] if between and not 1 / WITHIN <= model / took <= WITHIN else []
        each = f"{1e6 * fixed / PASSES[claim]:.0f} us a pass of {PASSES[claim]}"
        print(f"{'':22}{rate / 1e9:.1f} GFLOP/s, {each}")
    print(f"off by more than {WITHIN:g}: {', '.join(off)}" if off else f"all within a factor of {WITHIN:g}")
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
