"""What an estimate of a learning coefficient costs: ``icllab.diagnostics`` against devinterp 1.3.2, same process.

    .venv/bin/python bench/learning_coefficient.py [--threads 1,2] [--parts toys,transformer]

Toys: four losses whose coefficient is known, n = 1e6, nbeta = n / log n, localization 1, eight chains of 2000 + 2000
steps of Langevin dynamics at 0.1 / nbeta in both, and Hamiltonian Monte Carlo of ours. Seconds are those of the run
and of the first call with its compilation. The error of a chain is the root of the mean squared distance of the chains'
estimates from lambda - (m-1) / log nbeta; "s to 3 %" is what it would take to bring the error of a mean of chains to 3
per cent of that, as if none of it were bias. Targets are of the same algorithm; the whole function, which also chooses,
tests and warns, is beside it.

Transformer: 51 thousand parameters on in-context regression of four dimensions, trained by ``icl.fit``, batches of 256
of 4096 prompts, nbeta 66.7, localization 13.3, step 3e-4: what a step of one chain costs, of four of ours and of one of
devinterp's, which runs them one after the other. Answers and gradients of the two networks are compared at equal
weights before anything is timed. Rows run in turn, five rounds; the table has medians. devinterp has its batches made
beforehand, so that its data loader is not counted. On one thread ratios are of CPU seconds, on several of wall seconds.

devinterp and PyTorch are no dependencies: .venv/bin/python -m pip install devinterp==1.3.2 torch==2.13.0
Exit status 1 if a target is missed.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
import warnings
from importlib.util import find_spec

import machine

N = 1e6
NBETA = N / math.log(N)
CHAINS, STEPS = 8, 2000
TOYS = {"quadratic": 5.0, "crossing": 0.25, "reduced rank": 3.5 - 1 / math.log(NBETA), "deep linear": 3.0}
WITHOUT, WITH = 100.0, 3.0  # times devinterp, without and with compilation
DIM, LENGTH, WIDTH, HEADS, LAYERS = 4, 7, 64, 4, 2
PROMPTS, BATCH, TRAINING = 4096, 256, 1000
SETTING = {"nbeta": 66.7, "localization": 13.3, "step_size": 3e-4}
EACH = 4  # chains of the transformer
SAMPLED = 320  # steps of a chain whose estimates are compared: ten passes are left out, and ten count
PARITY, ERRORS = 1.0, 3.0
ROUNDS, SECONDS = 5, 4.0


def layers_of(widths, rank, np):
    """Matrices whose product is the identity of that rank, and the product."""
    layers = [np.eye(b, a) for a, b in itertools.pairwise(widths)]
    for layer in layers:
        layer[:, rank:] = 0
    truth = layers[0]
    for layer in layers[1:]:
        truth = layer @ truth
    return layers, truth


WIDTHS = {"reduced rank": (3, 2, 3), "deep linear": (3, 2, 2, 3)}


def our_toy(name):
    """The loss of a tree of parameters, and the point."""
    import jax.numpy as jnp
    import numpy as np

    if name == "quadratic":
        return (lambda w: jnp.sum(w**2) / 2), jnp.zeros(10)
    if name == "crossing":
        return (lambda w: (w[0] * w[1] ** 2) ** 2), jnp.zeros(2)
    layers, truth = layers_of(WIDTHS[name], 1, np)
    truth = jnp.asarray(truth, jnp.float32)

    def loss(layers):
        found = layers[0]
        for layer in layers[1:]:
            found = layer @ found
        return jnp.sum((found - truth) ** 2) / 2

    return loss, [jnp.asarray(layer, jnp.float32) for layer in layers]


def their_toy(name):
    """The same as a module whose answer is the loss."""
    import numpy as np
    import torch
    from torch import nn

    class Toy(nn.Module):
        def __init__(self):
            super().__init__()
            if name in WIDTHS:
                layers, truth = layers_of(WIDTHS[name], 1, np)
                self.w = nn.ParameterList([nn.Parameter(torch.tensor(w, dtype=torch.float32)) for w in layers])
                self.register_buffer("truth", torch.tensor(truth, dtype=torch.float32))
            else:
                self.w = nn.Parameter(torch.zeros(10 if name == "quadratic" else 2))

        def forward(self, _):
            if name == "quadratic":
                return (self.w**2).sum() / 2
            if name == "crossing":
                return (self.w[0] * self.w[1] ** 2) ** 2
            found = self.w[0]
            for layer in self.w[1:]:
                found = layer @ found
            return ((found - self.truth) ** 2).sum() / 2

    return Toy()


def toy(name):
    """Seconds, and estimates of every chain, of every row."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch
    from devinterp.optim.sgld import SGLD
    from devinterp.slt.llc import LLCEstimator
    from devinterp.slt.sampler import sample as their_sample

    from icllab import diagnostics
    from icllab.diagnostics.sampling.posteriors import Posterior
    from icllab.diagnostics.sampling.sampled_losses import vector_loss

    torch.set_num_threads(1)
    loss, at = our_toy(name)
    flat, centre = vector_loss(loss, at, None)
    posterior = Posterior(flat, centre, jnp.float32(NBETA), jnp.float32(1.0))
    starts = jnp.broadcast_to(centre, (CHAINS, centre.size))

    def ours(sampler, step):
        def run(seed):
            how = {"step_size": step, "warm_up": sampler.warm_up, "mode": "vmap", "key": jax.random.key(seed)}
            found = sampler.draw(posterior, starts, **how)
            return NBETA * np.asarray(found.terms, np.float64)[:, :, 0].mean(1)

        return run

    rows = {}
    for row, run in {
        "icllab sgld": ours(diagnostics.SGLD(chains=CHAINS, warm_up=STEPS, draws=STEPS), 0.1 / NBETA),
        "icllab hmc": ours(diagnostics.HMC(chains=CHAINS), 1 / NBETA),
    }.items():
        clock = time.perf_counter()
        run(0)
        first, times, found = time.perf_counter() - clock, [], []
        for seed in range(1, 6):
            clock = time.perf_counter()
            found += run(seed).tolist()
            times.append(time.perf_counter() - clock)
        rows[row] = {"first": first, "seconds": statistics.median(times), "chains": found}
    clock = time.perf_counter()
    whole = diagnostics.learning_coefficient(loss, at, n=N, localization=1.0, key=jax.random.key(9))
    asked = [time.perf_counter() - clock]
    clock = time.perf_counter()
    diagnostics.learning_coefficient(loss, at, n=N, localization=1.0, key=jax.random.key(9))
    asked.append(time.perf_counter() - clock)
    each = np.asarray(whole["chain_estimate"]).tolist()
    rows["learning_coefficient"] = {"first": asked[0], "seconds": asked[1], "chains": each}

    class Constant(torch.utils.data.DataLoader):
        def __iter__(self):
            return iter([torch.zeros(1)])

    warnings.simplefilter("ignore")
    estimator = LLCEstimator(CHAINS, STEPS, init_loss=torch.tensor(0.0), nbeta=NBETA)
    clock = time.perf_counter()
    their_sample(
        model=their_toy(name),
        loader=Constant(torch.utils.data.TensorDataset(torch.zeros(int(N), 0)), batch_size=2),
        evaluate=lambda model, data: model(data),
        callbacks=[estimator],
        sampling_method=SGLD,
        optimizer_kwargs={"lr": 0.1 / NBETA, "nbeta": NBETA, "localization": 1.0},
        num_draws=STEPS,
        num_chains=CHAINS,
        num_burnin_steps=STEPS,
        seed=100,
        init_loss=torch.tensor(0.0),
        verbose=False,
    )
    seconds = time.perf_counter() - clock
    rows["devinterp sgld"] = {"first": seconds, "seconds": seconds, "chains": estimator.llc_per_chain.tolist()}
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
    from devinterp.optim.sgld import SGLD
    from devinterp.slt.llc import LLCEstimator
    from devinterp.slt.sampler import sample as their_sample

    from icllab.diagnostics.sampling import convergence
    from icllab.diagnostics.sampling.posteriors import Posterior
    from icllab.diagnostics.sampling.sampled_losses import Batches, at_point, vector_loss
    from icllab.diagnostics.sampling.sampler_choice import chosen_mode
    from icllab.diagnostics.sampling.sgld import sample_batches
    from icllab.diagnostics.singular.run_losses import run_loss

    torch.set_num_threads(threads)
    task, run, prompts = trained()
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    loss, params = run_loss(run, None, 0, task, positions="every", per_position=False, prompt=shape)
    flat, centre = vector_loss(loss, params, prompts)
    known = at_point(flat, centre, batch=BATCH)
    posterior = Posterior(flat, centre, jnp.float32(SETTING["nbeta"]), jnp.float32(SETTING["localization"]))
    batches = Batches(posterior, known.terms, None, BATCH)
    starts = jnp.broadcast_to(centre, (EACH, centre.size))

    net = rival_network(run.predictor, np)
    arrangement = run.predictor.embedding.arrangement
    tokens = torch.from_numpy(np.array(jax.vmap(arrangement.tokens)(prompts)))
    answers = torch.from_numpy(np.array(prompts.y))

    def their_loss(model, data):
        found, wanted = model(data[0]), data[1]
        return ((found - wanted) ** 2).mean()

    # Refuse to time what does not compute the same.
    value, gradient = jax.jit(jax.value_and_grad(flat))(centre)
    theirs = their_loss(net, (tokens, answers))
    theirs.backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in net.parameters()))
    count = sum(p.numel() for p in net.parameters())
    assert count == centre.size, (count, centre.size)
    assert abs(float(theirs.detach()) - float(value)) < 1e-4 * float(value), (theirs, value)
    assert abs(norm - float(jnp.linalg.norm(gradient))) < 1e-3 * norm, (norm, float(jnp.linalg.norm(gradient)))
    net.zero_grad(set_to_none=True)

    def ours(mode):
        def sampled(steps, seed=1, warm_up=0):
            found = sample_batches(
                batches,
                starts,
                step_size=jnp.float32(SETTING["step_size"]),
                warm_up=jnp.asarray(warm_up + steps - 1),
                draws=1,
                mode=mode,
                key=jax.random.key(seed),
            )
            return jax.block_until_ready(found)

        return sampled

    order = torch.randperm(PROMPTS, generator=torch.Generator().manual_seed(0)).reshape(-1, BATCH)
    made = [(tokens[rows], answers[rows]) for rows in order]

    class Made(torch.utils.data.DataLoader):
        def __iter__(self):
            return iter(made)

    loader = Made(torch.utils.data.TensorDataset(tokens, answers), batch_size=BATCH)

    def theirs_sampled(steps, chains=1, burn_in=0, seed=0):
        level = torch.tensor(float(value))
        estimator = LLCEstimator(chains, steps, init_loss=level, nbeta=SETTING["nbeta"])
        step = {"lr": SETTING["step_size"], "nbeta": SETTING["nbeta"], "localization": SETTING["localization"]}
        their_sample(
            model=net,
            loader=loader,
            evaluate=their_loss,
            callbacks=[estimator],
            sampling_method=SGLD,
            optimizer_kwargs=step,
            num_draws=steps,
            num_chains=chains,
            num_burnin_steps=burn_in,
            seed=seed,
            init_loss=level,
            verbose=False,
        )
        return estimator

    warnings.simplefilter("ignore")
    rows = {f"icllab sgld, {mode}": ours(mode) for mode in ("map", "vmap")}
    clock = "cpu" if threads == 1 else "wall"
    found = machine.raced(rows | {"devinterp sgld": theirs_sampled}, rounds=ROUNDS, seconds=SECONDS, clock=clock)
    for row in rows:  # a step of ours is one of every chain
        for kind in ("cpu", "wall"):
            found[row][kind] = [each / EACH for each in found[row][kind]]
    mode, why = chosen_mode(batches, starts, 0.05, jax.random.key(3))
    half = SAMPLED // 2
    chains = sample_batches(
        batches,
        starts,
        step_size=jnp.float32(SETTING["step_size"]),
        warm_up=jnp.asarray(half),
        draws=half,
        mode=mode,
        key=jax.random.key(4),
    )
    above = SETTING["nbeta"] * np.asarray(chains.terms, np.float64).sum(2)
    estimator = theirs_sampled(half, chains=EACH, burn_in=half)
    losses = SETTING["nbeta"] * (estimator.losses.numpy().astype(np.float64) - float(value))
    estimates = {"icllab": convergence.mean_and_mcse(above), "devinterp": convergence.mean_and_mcse(losses)}
    return {"rows": found, "mode": mode, "why": why, "estimates": estimates, "parameters": count, "loss": float(value)}


def toys():
    """Print the rows of the toys; return the targets that were missed."""
    import numpy as np

    missed = []
    heads = f"{'estimate':>9} {'target':>7} {'chain error':>12} {'s':>8} {'first call s':>13} {'s to 3 %':>9}"
    print(f"{'toy':<14} {'row':<22} {heads}")
    for name, target in TOYS.items():
        rows = machine.child(__file__, 1, "toy", name)
        for row, entry in rows.items():
            each = np.array(entry["chains"])
            error = math.sqrt(np.mean((each - target) ** 2))
            needed = entry["seconds"] / CHAINS * (error / (0.03 * target)) ** 2
            print(
                f"{name:<14} {row:<22} {each.mean():>9.3f} {target:>7.3f} {error:>12.3f} {entry['seconds']:>8.3f} "
                f"{entry['first']:>13.2f} {needed:>9.3f}",
                flush=True,
            )
        same, theirs = rows["icllab sgld"], rows["devinterp sgld"]["seconds"]
        for what, seconds, wanted in (("without", same["seconds"], WITHOUT), ("with", same["first"], WITH)):
            if theirs / seconds < wanted:
                missed.append(f"{name}: {theirs / seconds:.1f}x {what} compilation, expected at least {wanted:g}x")
        ratios = {row: (theirs / entry["seconds"], theirs / entry["first"]) for row, entry in rows.items()}
        ratios.pop("devinterp sgld")
        said = ", ".join(f"{row} {without:.0f}x and {first:.1f}x" for row, (without, first) in ratios.items())
        print(f"{name:<14} devinterp's seconds over ours, without compilation and with it: {said}", flush=True)
    return missed


def compared(threads):
    """Print the rows of the transformer; return the targets that were missed."""
    missed = []
    for count in threads:
        found = machine.child(__file__, count, "transformer", count)
        kind = "cpu" if count == 1 else "wall"
        cost = {row: {k: statistics.median(entry[k]) for k in ("cpu", "wall")} for row, entry in found["rows"].items()}
        best = min((row for row in cost if row.startswith("icllab")), key=lambda row: cost[row][kind])
        print(f"\n{found['parameters']} parameters, loss {found['loss']:.3f}, {count} thread{'s' * (count > 1)}")
        print(f"{'row':<22} {'CPU ms':>9} {'wall ms':>9} {'first call s':>13} {'cost / best of ours':>20}")
        for row, seconds in cost.items():
            ratio = seconds[kind] / cost[best][kind]
            first = found["rows"][row]["first"]
            print(f"{row:<22} {1e3 * seconds['cpu']:>9.2f} {1e3 * seconds['wall']:>9.2f} {first:>13.2f} {ratio:>20.2f}")
        print(f"auto takes {found['mode']}: {found['why']}")
        (ours, error), (theirs, their_error) = found["estimates"]["icllab"], found["estimates"]["devinterp"]
        apart = abs(ours - theirs) / math.hypot(error, their_error)
        print(f"{ours:.1f} +- {error:.1f}, devinterp {theirs:.1f} +- {their_error:.1f}: {apart:.1f} errors apart")
        gain = cost["devinterp sgld"][kind] / cost[f"icllab sgld, {found['mode']}"][kind]
        if gain < PARITY:
            missed.append(f"transformer, {count} threads: {gain:.2f}x, expected at least {PARITY}x")
        if not apart < ERRORS:
            missed.append(f"transformer, {count} threads: estimates {apart:.1f} errors apart")
    return missed


def main():
    """Print the tables, and the targets that are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="of the transformer")
    parser.add_argument("--parts", default="toys,transformer")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        threads, what, *rest = json.loads(arguments.child)
        machine.pin(threads)
        print(json.dumps({"toy": toy, "transformer": transformer}[what](*rest)))
        return 0
    if find_spec("torch") is None or find_spec("devinterp") is None:
        print("missing: .venv/bin/python -m pip install devinterp==1.3.2 torch==2.13.0", file=sys.stderr)
        return 2
    print(machine.described("jax", "torch", "devinterp"))
    parts, missed = arguments.parts.split(","), []
    if "toys" in parts:
        missed += toys()
    if "transformer" in parts:
        missed += compared([int(one) for one in arguments.threads.split(",")])
    for one in missed:
        print("MISSED", one)
    print("all targets met" if not missed else f"{len(missed)} targets missed")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
