"""What an estimate of a learning coefficient costs: ``icllab.diagnostics`` against devinterp 2.0.1, same process.

    .venv/bin/python bench/learning_coefficient.py [--threads 1,2] [--parts toys,transformer,language]

Toys: losses whose coefficient is known, n = 1e6, nbeta = n / log n, localization 1, eight chains of 2000 + 2000 steps
of Langevin dynamics at 0.1 / nbeta in both, Hamiltonian Monte Carlo of ours, and the whole function, which also
chooses, tests and warns. The error of a chain is the root mean square distance of the chains' estimates from
lambda - (m-1) / log nbeta; "s to 3 %" is the time to bring the error of a mean of chains to 3 per cent of that value,
if none of it were bias. Targets are of the same algorithm, and of the seconds to 3 per cent of Hamiltonian Monte Carlo.

devinterp's chains are those of its ``sample``. Its rows are numbers of prompts, and ``loss_fn`` returns the losses of
these. Its means count the burn-in; here it is cut.

Transformer: 51 thousand parameters on in-context regression, trained by ``icl.fit``, batches of 256 of 4096 prompts:
the cost of a step of one chain, of four of ours and of one of devinterp's, which runs them in turn. Losses and
gradients of the two networks are compared at equal weights first. Rows run in turn, five rounds; the table has medians.
On one thread ratios are of CPU seconds, on several of wall seconds; toys run on one.

Language: SmolLM2-135M (``make models``), by transformers in devinterp. One chain of 20 draws on batches of two rows of
128 random tokens, one thread. Losses at the point are compared first; there is no target.

devinterp and PyTorch are no dependencies: .venv/bin/python -m pip install devinterp==2.0.1 torch==2.13.0
Exit status 1 if a target is missed.
"""

import argparse
import functools
import itertools
import math
import statistics
import sys
import time
import warnings
from dataclasses import replace
from importlib.util import find_spec

import machine

N = 1e6
NBETA = N / math.log(N)
CHAINS, STEPS = 8, 2000
TOYS = {"quadratic": 5.0, "crossing": 0.25, "reduced rank": 3.5 - 1 / math.log(NBETA), "deep linear": 3.0}
WITHOUT, WITH = 100.0, 3.0  # times devinterp, without and with compilation
TO_TRUTH = 20.0  # times devinterp, of the seconds to 3 per cent without compilation
DIM, LENGTH, WIDTH, HEADS, LAYERS = 4, 7, 64, 4, 2
PROMPTS, BATCH, TRAINING = 4096, 256, 1000
NBETA_OF_RUN, LOCALIZATION, STEP = 66.7, 13.3, 3e-4
EACH = 4  # chains of the transformer
SAMPLED = 320  # steps of a chain whose estimates are compared: ten passes are left out, and ten count
PARITY, ERRORS = 1.0, 3.0
ROUNDS, SECONDS = 5, 4.0
TOKENS, TEXTS, READ, OF_LANGUAGE = 128, 8, 2, 20  # of a row; rows, rows of a batch, draws


SHAPES = {"reduced rank": ((2, 3), (3, 2)), "deep linear": ((2, 3), (2, 2), (3, 2))}  # of rank 1 at the point
SIZES = {"quadratic": 10, "crossing": 2}


def toy_point(name):
    """The parameters at the minimum, as one vector."""
    import numpy as np

    layers = [np.eye(*shape) * np.eye(shape[1])[0] for shape in SHAPES.get(name, ())]
    return np.concatenate([layer.ravel() for layer in layers]) if layers else np.zeros(SIZES[name])


def toy_loss(name, w):
    """The loss of one toy; the arithmetic is that of JAX and of PyTorch."""
    if name == "quadratic":
        return (w**2).sum() / 2
    if name == "crossing":
        return (w[0] * w[1] ** 2) ** 2
    layers, begin = [], 0
    for rows, columns in SHAPES[name]:
        layers.append(w[begin : begin + rows * columns].reshape(rows, columns))
        begin += rows * columns
    product = functools.reduce(lambda below, layer: layer @ below, layers)
    return ((product**2).sum() + 1) / 2 - product[0, 0]  # half the squared distance from a single one


def their_chains(model, rows, loss, *, nbeta, localization, step, draws, chains, burn_in, batch=1):
    """Losses of devinterp's chains after the burn-in, [chain, draw]."""
    from datasets import Dataset
    from devinterp.slt.llc import compute_llc
    from devinterp.slt.sampling import sample

    warnings.simplefilter("ignore")
    dataset = Dataset.from_dict({"input_ids": [[row, 0] for row in range(rows)]}).with_format("torch")
    options = {"lr": step, "n_beta": nbeta, "localization": localization, "batch_size": batch, "device": "cpu"}
    options |= {"num_draws": draws, "num_chains": chains, "num_burnin_steps": burn_in, "num_init_loss_batches": 1}
    tree = sample(model, dataset, {}, loss_fn=lambda model, ids: loss(model, ids[:, 0])[:, None], **options)
    return compute_llc(tree)["loss_trace"].transpose("chain", "step").values[:, burn_in:]


def timed(function, *arguments):
    """CPU seconds of a call on one thread, and its result."""
    clock = time.process_time()
    result = function(*arguments)
    return time.process_time() - clock, result


def toy(name):
    """Seconds, and estimates of every chain, of every row."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from icllab import diagnostics
    from icllab.diagnostics.sampling.posteriors import Posterior
    from icllab.diagnostics.sampling.sampled_losses import vector_loss

    torch.set_num_threads(1)
    loss, at = functools.partial(toy_loss, name), jnp.asarray(toy_point(name), jnp.float32)
    flat, centre = vector_loss(loss, at, None)
    posterior = Posterior(flat, centre, jnp.float32(NBETA), jnp.float32(1.0))
    starts = jnp.broadcast_to(centre, (CHAINS, centre.size))

    def ours(sampler, step):
        def run(seed):
            options = {"step_size": step, "warm_up": sampler.warm_up, "mode": "vmap", "key": jax.random.key(seed)}
            terms = np.asarray(sampler.draw(posterior, starts, **options).terms, np.float64)
            return (NBETA * terms[:, :, 0].mean(1)).tolist()

        return run

    def whole(_):
        near = diagnostics.LocalPosterior.from_function(loss, at, n=N, localization=1.0)
        estimate = diagnostics.learning_coefficient(near, key=jax.random.key(9))
        return np.asarray(estimate["chain_estimate"]).tolist()

    rows = {}
    for row, run, repeats in (
        ("icllab sgld", ours(diagnostics.SGLD(chains=CHAINS, warm_up=STEPS, draws=STEPS), 0.1 / NBETA), 5),
        ("icllab hmc", ours(diagnostics.HMC(chains=CHAINS), 1 / NBETA), 5),
        ("learning_coefficient", whole, 1),
    ):
        first, _ = timed(run, 0)
        seconds, chains = zip(*(timed(run, seed) for seed in range(1, repeats + 1)), strict=True)
        rows[row] = {"first": first, "seconds": statistics.median(seconds), "chains": [*itertools.chain(*chains)]}
    setting = {"nbeta": NBETA, "localization": 1.0, "step": 0.1 / NBETA}
    setting |= {"draws": STEPS, "chains": CHAINS, "burn_in": STEPS}

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(toy_point(name)).float())

        def forward(self, numbers):
            return toy_loss(name, self.w).expand(len(numbers))

    network = Toy()
    seconds, losses = timed(lambda: their_chains(network, 1, lambda model, numbers: model(numbers), **setting))
    chains = (NBETA * losses.astype(float).mean(1)).tolist()
    rows["devinterp sgld"] = {"first": seconds, "seconds": seconds, "chains": chains}
    return rows


def trained():
    """The task, the network after training, and prompts."""
    import equinox as eqx
    import jax
    import optax

    import icllab as icl
    from icllab.models import BlockOptions, Interleaved, Transformer
    from icllab.tasks import LinearRegression

    task = LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)

    def build(key):
        return Transformer(
            Interleaved(),
            dim=DIM,
            width=WIDTH,
            layers=LAYERS,
            block=BlockOptions(heads=HEADS, mlp=(WIDTH,), nonlinearity="relu", norm="pre"),
            positions="learned",
            length=LENGTH,
            key=key,
        )

    model = eqx.filter_jit(build)(jax.random.key(0))
    run = icl.fit(model, task, steps=TRAINING, key=jax.random.key(1), batch=BATCH, optimizer=optax.adam(1e-3))
    prompts = task.sample_many(PROMPTS, key=jax.random.key(2))
    return task, run, prompts


def rival_network(model, np):
    """The same network in PyTorch, with our weights."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    tokens = 2 * LENGTH + 1
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()[::2]

    def given(array):
        return nn.Parameter(torch.from_numpy(np.array(array)))

    class Block(nn.Module):
        def __init__(self, block, last):
            super().__init__()
            self.last = last
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            for norm, ours in zip(self.norms, block.norms, strict=True):
                norm.weight, norm.bias = given(ours.scale), given(ours.shift)
            parts = [np.asarray(w).reshape(WIDTH, -1).T for w in (block.attention.query, block.attention.key)]
            parts.append(np.asarray(block.attention.value).reshape(WIDTH, -1).T)
            self.qkv = given(np.concatenate(parts))
            self.out = given(np.asarray(block.attention.output).reshape(-1, WIDTH).T)
            self.dense = nn.ParameterList()
            for layer in block.mlp.layers:
                self.dense += [given(np.asarray(layer.weight).T), given(layer.bias)]

        def forward(self, x):
            n = len(x)
            qkv = F.linear(self.norms[0](x), self.qkv)
            q, k, v = qkv.view(n, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            if self.last:  # as ours: only what is read
                found, x = F.scaled_dot_product_attention(q[:, :, ::2], k, v, attn_mask=seen), x[:, ::2]
            else:
                found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(found.transpose(1, 2).reshape(n, -1, WIDTH), self.out)
            hidden = F.relu(F.linear(self.norms[1](x), self.dense[0], self.dense[1]))
            return x + F.linear(hidden, self.dense[2], self.dense[3])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            embedding = model.embedding
            self.read, self.bias = given(np.asarray(embedding.projection.weight).T), given(embedding.projection.bias)
            self.place = given(embedding.table)
            last = len(model.blocks) - 1
            self.blocks = nn.ModuleList([Block(block, i == last) for i, block in enumerate(model.blocks)])
            self.norm = nn.LayerNorm(WIDTH)
            self.norm.weight, self.norm.bias = given(model.final_norm.scale), given(model.final_norm.shift)
            self.weight, self.shift = given(np.asarray(model.readout.weight).T), given(model.readout.bias)

        def forward(self, tokens):
            x = F.linear(tokens, self.read, self.bias) + self.place
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.weight, self.shift)[..., 0]

    return Net()


def transformer(threads):
    """Seconds of a step of one chain of every row, and the estimates of both."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from icllab.diagnostics import SGLD
    from icllab.diagnostics.sampling import convergence
    from icllab.diagnostics.sampling.local_loss import LocalLoss
    from icllab.diagnostics.sampling.run_losses import run_loss
    from icllab.diagnostics.sampling.samplers import chain_mode

    torch.set_num_threads(threads)
    task, run, prompts = trained()
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    loss, params = run_loss(run, None, 0, task, per_position=False, prompt=shape)
    sampler, local = SGLD(batch=BATCH), LocalLoss.from_loss(loss, params, prompts, block=BATCH)
    centre = local.centre
    batches = sampler.target(local.posterior(NBETA_OF_RUN, LOCALIZATION), local.known)
    starts = jnp.broadcast_to(centre, (EACH, centre.size))

    network = rival_network(run.predictor, np)
    arrangement = run.predictor.embedding.arrangement
    tokens = torch.from_numpy(np.array(jax.vmap(arrangement.tokens)(prompts)))
    labels = torch.from_numpy(np.array(prompts.y))

    def their_loss(model, numbers):
        return ((model(tokens[numbers]) - labels[numbers]) ** 2).mean(1)

    # Refuse to time what does not compute the same.
    value, gradient = jax.jit(jax.value_and_grad(local.loss))(centre)
    theirs = their_loss(network, torch.arange(PROMPTS)).mean()
    theirs.backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in network.parameters()))
    count = sum(p.numel() for p in network.parameters())
    assert count == centre.size, (count, centre.size)
    assert abs(float(theirs.detach()) - float(value)) < 1e-4 * float(value), (theirs, value)
    assert abs(norm - float(jnp.linalg.norm(gradient))) < 1e-3 * norm, (norm, float(jnp.linalg.norm(gradient)))
    network.zero_grad(set_to_none=True)

    def ours(mode, warm_up=0, draws=1, seed=1):
        options = {"step_size": STEP, "draws": draws, "mode": mode, "key": jax.random.key(seed)}
        kept = replace(sampler, draws=max(draws, 8))
        return lambda steps: jax.block_until_ready(
            kept.draw(batches, starts, warm_up=warm_up + steps - draws, **options)
        )

    setting = {"nbeta": NBETA_OF_RUN, "localization": LOCALIZATION, "step": STEP, "batch": BATCH}

    def their_steps(steps, chains=1, burn_in=0):
        return their_chains(network, PROMPTS, their_loss, draws=steps, chains=chains, burn_in=burn_in, **setting)

    rows = {f"icllab sgld, {mode}": ours(mode) for mode in ("map", "vmap")}
    clock = "cpu" if threads == 1 else "wall"
    times = machine.raced(rows | {"devinterp sgld": their_steps}, rounds=ROUNDS, seconds=SECONDS, clock=clock)
    for row in rows:  # a step of ours is one of every chain
        for kind in ("cpu", "wall"):
            times[row][kind] = [seconds / EACH for seconds in times[row][kind]]
    mode, why = chain_mode(sampler, local)
    half = SAMPLED // 2
    chains = ours(mode, draws=half, seed=4)(SAMPLED)
    losses = their_steps(half, chains=EACH, burn_in=half).astype(np.float64) - float(value)
    estimates = {"icllab": np.asarray(chains.terms, np.float64).sum(2), "devinterp": losses}
    estimates = {name: convergence.mean_and_mcse(NBETA_OF_RUN * above) for name, above in estimates.items()}
    return {"rows": times, "mode": mode, "why": why, "estimates": estimates, "parameters": count, "loss": float(value)}


def language():
    """Seconds of a chain on a language model, ours and devinterp's, and means of the draws."""
    import jax
    import jax.numpy as jnp
    import language_models
    import numpy as np
    import torch

    from icllab.core.prompt import TokenPrompt
    from icllab.diagnostics import SGLD
    from icllab.diagnostics.sampling.local_loss import LocalLoss

    torch.set_num_threads(1)
    model = language_models.opened()
    texts = np.random.default_rng(0).integers(4, model.embedding.arrangement.vocabulary, (TEXTS, TOKENS))
    setting = {"nbeta": 30.0, "localization": 100.0, "step": 1e-6}

    def our_loss(model, ids):
        logits = jax.vmap(lambda row: model(TokenPrompt(jnp.append(row, 0))))(ids)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], 2).mean()

    sampler = SGLD(batch=READ)
    local = LocalLoss.from_loss(our_loss, model, jnp.asarray(texts), block=READ, pull=setting["localization"])
    target = sampler.target(local.posterior(setting["nbeta"], setting["localization"]), local.known)
    options = {"step_size": setting["step"], "warm_up": 0, "draws": OF_LANGUAGE, "mode": "map"}

    def ours(seed):
        run = sampler.draw(target, local.centre[None], key=jax.random.key(seed), **options)
        return setting["nbeta"] * float(np.asarray(run.terms, np.float64).mean())

    module, tokens = language_models.llama(model), torch.tensor(texts)

    def their_loss(module, numbers):
        ids = tokens[numbers]
        logits = module(ids, use_cache=False).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)

    level = float(local.known.baseline.sum())
    with torch.inference_mode():
        theirs = statistics.mean(float(their_loss(module, torch.tensor([row]))) for row in range(TEXTS))
    assert abs(theirs - level) < 1e-4 * level, (theirs, level)
    first, _ = timed(ours, 1)
    seconds, estimate = timed(ours, 2)
    options = setting | {"draws": OF_LANGUAGE, "chains": 1, "burn_in": 0, "batch": READ}
    their_seconds, losses = timed(lambda: their_chains(module, TEXTS, their_loss, **options))
    above = setting["nbeta"] * float(losses.astype(np.float64).mean() - level)
    rows = {"icllab sgld": (estimate, seconds, first), "devinterp sgld": (above, their_seconds, their_seconds)}
    return {"rows": rows, "parameters": local.centre.size, "loss": level}


def toys():
    """Print the rows of the toys; return the targets that were missed."""
    import numpy as np

    missed, headers = [], ("toy", "row", "estimate", "target", "chain error", "s", "first call s", "s to 3 %")
    for name, target in TOYS.items():
        rows, lines, to_truth = machine.child(__file__, 1, "toy", name), [], {}
        for row, entry in rows.items():
            each = np.array(entry["chains"])
            error = math.sqrt(np.mean((each - target) ** 2))
            needed = to_truth[row] = entry["seconds"] / CHAINS * (error / (0.03 * target)) ** 2
            lines.append((name, row, float(each.mean()), target, error, entry["seconds"], entry["first"], needed))
        machine.table(lines, headers)
        same, theirs = rows["icllab sgld"], rows["devinterp sgld"]["seconds"]
        for kind, seconds, target in (("without", same["seconds"], WITHOUT), ("with", same["first"], WITH)):
            if theirs / seconds < target:
                missed.append(f"{name}: {theirs / seconds:.1f}x {kind} compilation, expected at least {target:g}x")
        gain = to_truth["devinterp sgld"] / to_truth["icllab hmc"]
        print(f"{name:<14} devinterp's seconds to 3 % over those of icllab hmc: {gain:.0f}x")
        if gain < TO_TRUTH:
            missed.append(f"{name}: {gain:.1f}x to 3 % of the true value, expected at least {TO_TRUTH:g}x")
        ratios = {row: (theirs / entry["seconds"], theirs / entry["first"]) for row, entry in rows.items()}
        ratios.pop("devinterp sgld")
        text = ", ".join(f"{row} {without:.0f}x and {first:.1f}x" for row, (without, first) in ratios.items())
        print(f"{name:<14} devinterp's seconds over ours, without compilation and with it: {text}", flush=True)
    return missed


def compared(threads):
    """Print the rows of the transformer; return the targets that were missed."""
    missed = []
    for count in threads:
        result = machine.child(__file__, count, "transformer", count)
        kind = "cpu" if count == 1 else "wall"
        cost = {row: {k: statistics.median(entry[k]) for k in ("cpu", "wall")} for row, entry in result["rows"].items()}
        best = min((row for row in cost if row.startswith("icllab")), key=lambda row: cost[row][kind])
        print(f"\n{result['parameters']} parameters, loss {result['loss']:.3f}, {count} thread{'s' * (count > 1)}")
        lines = []
        for row, seconds in cost.items():
            ratio = seconds[kind] / cost[best][kind]
            first = result["rows"][row]["first"]
            lines.append((row, 1e3 * seconds["cpu"], 1e3 * seconds["wall"], first, ratio))
        machine.table(lines, ("row", "CPU ms", "wall ms", "first call s", "cost / best of ours"))
        print(f"auto takes {result['mode']}: {result['why']}")
        (ours, error), (theirs, their_error) = result["estimates"]["icllab"], result["estimates"]["devinterp"]
        distance = abs(ours - theirs) / math.hypot(error, their_error)
        print(f"{ours:.1f} +- {error:.1f}, devinterp {theirs:.1f} +- {their_error:.1f}: {distance:.1f} errors apart")
        gain = cost["devinterp sgld"][kind] / cost[f"icllab sgld, {result['mode']}"][kind]
        if gain < PARITY:
            missed.append(f"transformer, {count} threads: {gain:.2f}x, expected at least {PARITY}x")
        if not distance < ERRORS:
            missed.append(f"transformer, {count} threads: estimates {distance:.1f} errors apart")
    return missed


def main():
    """Print the tables, and the targets that are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="of the transformer")
    parser.add_argument("--parts", default="toys,transformer")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return machine.answer(
            arguments.child,
            lambda part, *rest: {"toy": toy, "transformer": transformer, "language": language}[part](*rest),
        )
    if find_spec("torch") is None or find_spec("devinterp") is None:
        print("missing: .venv/bin/python -m pip install devinterp==2.0.1 torch==2.13.0", file=sys.stderr)
        return 2
    print(machine.described("jax", "torch", "devinterp"))
    parts, missed = arguments.parts.split(","), []
    if "toys" in parts:
        missed += toys()
    if "transformer" in parts:
        missed += compared([int(count) for count in arguments.threads.split(",")])
    if "language" in parts:
        result = machine.child(__file__, 1, "language")
        print(f"\n{result['parameters']} parameters, loss {result['loss']:.3f}, {OF_LANGUAGE} draws of one chain")
        rows = [(row, *numbers) for row, numbers in result["rows"].items()]
        machine.table(rows, ("row", "nbeta (mean loss - loss)", "CPU s", "first call s"))
    return machine.report(missed)


if __name__ == "__main__":
    sys.exit(main())
