"""What a language model costs: SmolLM2-135M here, in transformers and in TransformerLens, on the same weights.

    .venv/bin/python bench/language_models.py [--peers DIR ...] [--threads 2] [--rounds 5] [--only loading,...]

``make models`` brings the model. A folder of ``--peers`` holds what is no dependency (``pip install --target DIR
torch==2.13.0 'transformers>=5' 'transformer-lens>=4'``); it comes last on the path, and a row whose package is not
there says so. All numbers are float32 but where a table says bfloat16. The forward pass is of one prompt of 512 tokens
with all its logits. Writing is of the likeliest 64 tokens after 32, on one thread. Head scores are those of all 270
heads on ``--prompts`` (32) prompts of repeated random tokens, two blocks of 64: all five scores here, the
previous-token and the diagonal induction score there, from the hooks of the patterns of a ``TransformerBridge`` and
without a cache, with the weights as they are and after ``enable_compatibility_mode()``, which folds them.
Rows of a table run in turn in one process; seconds are medians over the rounds, and a first call, which
compiles, stands by itself.
Memory is the peak of a fresh process above that of one that has imported the same. Exit status 1: a target is missed.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time

import machine

TOKENS, PERIOD = 512, 64
OURS, HF, LENS, FOLDED = "icllab", "transformers", "TransformerLens", "TransformerLens, folded"
# Loading: seconds and MiB. Forward: seconds, and times the seconds of transformers. Heads: seconds.
PROMPT, WRITTEN, WRITING = 32, 64, {"float32": 0.8, "bfloat16": 0.6}  # times the CPU seconds of transformers
LOADING, MEMORY, FORWARD, RATIO, HEADS = 4.0, 1200, 5.0, 1.5, 60.0


def opened():
    """The model."""
    from iclbook.claims.language import _models

    return _models.load("smollm2-135m")


def peak():
    """Most memory of this process so far, in MiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def loading(load):
    """Seconds and the peak of a process that imports what loading imports and, if ``load``, loads the model."""
    import gguf  # noqa: F401
    import jax
    import jax.numpy as jnp
    import xarray  # noqa: F401

    from iclbook.claims.language import _models  # noqa: F401

    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros(3)))
    start = time.perf_counter(), time.process_time()
    if load:
        jax.block_until_ready(jax.tree.leaves(opened().blocks[-1].mlp.layers[1].weight))
    return {"wall": time.perf_counter() - start[0], "cpu": time.process_time() - start[1], "peak": peak()}


def llama(model):
    """The same weights in transformers, by its names and with pairs of halves."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    blocks, rotary = model.blocks, model.blocks[0].attention.rotary
    width, heads, dim = blocks[0].attention.query.shape
    weights = {
        "model.embed_tokens.weight": model.embedding.projection.weight,
        "model.norm.weight": model.final_norm.scale,
    }
    for i, block in enumerate(blocks):
        attention, mlp, at = block.attention, block.mlp, f"model.layers.{i}."
        for part in ("query", "key", "value"):
            w = np.asarray(getattr(attention, part))
            if rotary.pairs == "adjacent" and part != "value":
                w = w.reshape(*w.shape[:2], dim // 2, 2).swapaxes(2, 3).reshape(w.shape)
            weights[f"{at}self_attn.{part[0]}_proj.weight"] = w.reshape(width, -1).T
        weights[f"{at}self_attn.o_proj.weight"] = attention.output.reshape(-1, width).T
        for name, dense in (("gate", mlp.gate), ("up", mlp.layers[0]), ("down", mlp.layers[1])):
            weights[f"{at}mlp.{name}_proj.weight"] = dense.weight.T
        norms = ("input_layernorm", "post_attention_layernorm")
        weights |= {f"{at}{name}.weight": norm.scale for name, norm in zip(norms, block.norms, strict=True)}
    config = LlamaConfig(
        vocab_size=model.embedding.arrangement.vocabulary,
        hidden_size=width,
        intermediate_size=blocks[0].mlp.gate.weight.shape[1],
        num_hidden_layers=len(blocks),
        num_attention_heads=heads,
        num_key_value_heads=blocks[0].attention.key.shape[1],
        rms_norm_eps=blocks[0].norms[0].epsilon,
        rope_theta=rotary.base,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    module = LlamaForCausalLM(config)
    state = {name: torch.tensor(np.ascontiguousarray(value)) for name, value in weights.items()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"expected the names of transformers, got {missing}, {unexpected}")
    module.tie_weights()
    return module.eval()


def hooked(module, folded):
    """The same weights in TransformerLens, as they are or folded."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    module.set_attn_implementation("eager")  # which has patterns
    bridge = build_bridge_from_module(module, type(module).__name__, hf_config=module.config)
    if folded:
        bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge.eval()


def available(rows):
    """The rows whose packages are there; the text of the error of each other one."""
    results, missing = {}, {}
    for name, make in rows.items():
        try:
            results[name] = make()
        except ImportError as error:
            missing[name] = str(error)
    return results, missing


def timed(rows, rounds):
    """Row -> wall seconds of a first call and of each round, what it returns, and CPU seconds of each round.

    ``missing`` has the text of the error of each row whose package is not there.
    """
    rows, missing = available(rows)
    results = {name: {"wall": [], "cpu": []} for name in rows}
    for i in range(rounds + 1):
        for name, run in rows.items():
            start = time.perf_counter(), time.process_time()
            value = run()
            wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
            if i:
                results[name]["wall"].append(wall)
                results[name]["cpu"].append(cpu)
            else:
                results[name] |= {"first": wall, "value": value}
    return results | {"missing": missing}


def measured(results, difference):
    """Replace the value of each row that ran by its difference from ours."""
    reference = results[OURS]["value"]
    for name, row in results.items():
        if name != "missing":
            row["value"] = difference(row["value"], reference)
    return results


def forward(rounds):
    """Logits of one prompt of 512 tokens; the largest difference from ours over the largest logit."""
    import jax
    import numpy as np

    model = opened()
    ids = np.random.default_rng(0).integers(0, model.embedding.arrangement.vocabulary, TOKENS)

    def here():
        return lambda: np.asarray(jax.block_until_ready(model.logits(ids)))

    def there():
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
        module, tokens = llama(model), torch.tensor(ids)[None]

        def run():
            with torch.inference_mode():
                return module(tokens, use_cache=False).logits[0].numpy()

        return run

    results = timed({OURS: here, HF: there}, rounds)
    return measured(results, lambda value, ours: float(np.abs(value - ours).max() / np.abs(ours).max()))


def writing(rounds, dtype):
    """The likeliest 64 tokens after 32, kept in ``dtype`` here and in float32 there; the number that differs."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from icllab.models.pretrained.generation import Sampling, written

    model = opened()
    ids = np.random.default_rng(0).integers(4, model.embedding.arrangement.vocabulary, PROMPT)
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.ndim > 1 else leaf, model)

    def here():
        sampling = Sampling(jnp.zeros(()), jax.random.key(0)[None])
        return lambda: list(written(narrow, [ids], WRITTEN, sampling, WRITTEN))[-1][0]

    def there():
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
        module, tokens = llama(model), torch.tensor(ids)[None]
        ends = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}

        def run():
            with torch.inference_mode():
                return module.generate(tokens, **ends)[0, PROMPT:].numpy()

        return run

    return measured(timed({OURS: here, HF: there}, rounds), lambda value, ours: int((value != ours).sum()))


def heads(rounds, prompts):
    """Scores of all heads; the largest difference of the diagonal induction score from ours."""
    import jax
    import numpy as np

    from icllab import diagnostics, tasks
    from icllab.diagnostics.behaviour.answers import sample_prompts

    model, key = opened(), jax.random.key(0)
    task = tasks.RepeatedTokens(vocabulary=model.embedding.arrangement.vocabulary, period=PERIOD)
    tokens = np.asarray(sample_prompts(task, key=key, prompts=prompts).tokens)[:, :-1]

    def here():
        return lambda: diagnostics.head_scores(model, task, key=key, prompts=prompts).diagonal_induction_score.values

    def there(folded):
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
        lens = hooked(llama(model), folded)

        def run():
            scores = {}

            def add(pattern, hook, block):
                diagonals = (pattern.diagonal(-shift, -2, -1).mean(-1).sum(0) for shift in (1, PERIOD - 1))
                scores[block] = tuple(a + b for a, b in zip(scores.get(block, (0, 0)), diagonals, strict=True))

            count = len(model.blocks)
            hooks = [(f"blocks.{i}.attn.hook_pattern", functools.partial(add, block=i)) for i in range(count)]

            with torch.inference_mode():
                for rows in np.split(tokens, range(8, prompts, 8)):
                    lens.run_with_hooks(torch.tensor(rows), return_type=None, fwd_hooks=hooks)
            return np.concatenate([scores[i][1] for i in range(count)]) / prompts

        return run

    rows = {OURS: here, LENS: lambda: there(False), FOLDED: lambda: there(True)}
    results = measured(timed(rows, rounds), lambda value, ours: float(np.abs(value - ours).max()))
    return results | {"peak": peak()}


def table(results):
    """Print the seconds of every row."""
    lines, missing = [], results.pop("missing")
    for name, row in results.items():
        wall, cpu = (statistics.median(row[kind]) for kind in ("wall", "cpu"))
        span = f"{min(row['wall']):.2f}-{max(row['wall']):.2f}"
        lines.append((name, row["first"], wall, span, cpu, row["value"]))
    machine.table(lines, ("row", "first call s", "wall s", "range", "CPU s", "difference"))
    for name, error in missing.items():
        print(f"{name}: not measured, {error}")


def main(options):
    """Print a table of each part; return the exit status."""
    missed, parts = [], options.only.split(",")
    print(machine.described("jax"))
    environment = {"ICLLAB_PEERS": os.pathsep.join(options.peers)}

    def child(*arguments):
        return machine.child(__file__, options.threads, *arguments, **environment)

    if "loading" in parts:
        floor = child("loading", False)["peak"]
        rounds = [child("loading", True) for _ in range(options.rounds)]
        wall, cpu, above = (statistics.median(row[name] for row in rounds) for name in ("wall", "cpu", "peak"))
        above -= floor
        print(f"loading: {wall:.2f} s wall, {cpu:.2f} s CPU; {above:.0f} MiB above a floor of {floor:.0f}")
        missed += [f"loading: {wall:.2f} s, not below {LOADING:g}"] * (wall >= LOADING)
        missed += [f"loading: {above:.0f} MiB, not below {MEMORY}"] * (above >= MEMORY)
    if "forward" in parts:
        results = child("forward", options.rounds)
        print(f"\nforward pass, {TOKENS} tokens, {options.threads} threads")
        table(results)
        ours = statistics.median(results[OURS]["wall"])
        missed += [f"forward: {ours:.2f} s, not below {FORWARD:g}"] * (ours >= FORWARD)
        if HF in results:
            kinds = ("wall", "cpu")
            wall, cpu = (
                statistics.median(a / b for a, b in zip(results[OURS][k], results[HF][k], strict=True)) for k in kinds
            )
            print(f"{wall:.2f} times the wall seconds of transformers, {cpu:.2f} times its CPU seconds")
            missed += [f"forward: {wall:.2f} times transformers, not below {RATIO}"] * (wall >= RATIO)
    for dtype, most in WRITING.items() if "writing" in parts else ():
        results = machine.child(__file__, 1, "writing", options.rounds, dtype, **environment)
        print(f"\n{WRITTEN} tokens after {PROMPT}, weights here in {dtype}, there in float32, one thread")
        table(results)
        if HF in results:
            ratio = statistics.median(a / b for a, b in zip(results[OURS]["cpu"], results[HF]["cpu"], strict=True))
            print(f"{ratio:.2f} times the CPU seconds of transformers")
            missed += [f"writing, {dtype}: {ratio:.2f} times transformers, not below {most}"] * (ratio >= most)
    if "heads" in parts:
        results = child("heads", options.rounds, options.prompts)
        memory = results.pop("peak")
        size = f"{options.prompts} prompts of {2 * PERIOD} tokens"
        print(f"\nscores of 270 heads, {size}, {options.threads} threads; {memory:.0f} MiB")
        table(results)
        ours = statistics.median(results[OURS]["wall"])
        missed += [f"heads: {ours:.2f} s, not below {HEADS:g}"] * (ours >= HEADS * options.prompts / 32)
        for name in (LENS, FOLDED):
            if name in results:
                wall, cpu = (
                    statistics.median(a / b for a, b in zip(results[OURS][k], results[name][k], strict=True))
                    for k in ("wall", "cpu")
                )
                print(f"{wall:.2f} times the wall seconds of {name}, {cpu:.2f} times its CPU seconds")
                missed += [f"heads: {wall:.2f} times {name}"] * (wall >= 1)
    return machine.report(missed)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--peers", action="append", default=[], metavar="DIR", help="folders of packages")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--prompts", type=int, default=32)
    arguments.add_argument("--only", default="loading,forward,writing,heads")
    arguments.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = arguments.parse_args()
    if arguments.child is None:
        sys.exit(main(arguments))
    sys.path += [folder for folder in os.environ.get("ICLLAB_PEERS", "").split(os.pathsep) if folder]
    threads, part, *values = arguments.child
    machine.pin(threads)
    print(json.dumps({"loading": loading, "forward": forward, "writing": writing, "heads": heads}[part](*values)))
