"""Networks that others wrote, each measured by the library and beside what its own script found, in standard errors.

    .venv/bin/python bench/strangers.py FOLDER [--prompts 1024] [--only NAME] [--coefficient]

FOLDER has a folder for each network of ADAPTERS, with ``network.py`` and the numbers in ``expected.json``. A line of
the table has the measured and the expected number, each with its error, and their deviation in joint errors; the exit
status is 1 if a deviation exceeds four. Numbers without an error, as of compiled programs, must agree to 0.002. With
``--coefficient`` the learning coefficient by autograd stands beside that of the copy of the weights.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np

import icllab as icl
from icllab import algorithms, diagnostics, models, tasks
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.errors import IclError
from icllab.core.user_files import named
from icllab.examination.measuring import Mean, Zero

MOST = 4.0
ROUNDING = 0.002  # of numbers that are known without an error
ROWS: list[tuple[str, str, float, float, float, float]] = []
KEYS = [jax.random.key(seed) for seed in range(70, 80)]
JOINED = models.Joined(answers="every", causal=True, query_is_key=True)
RAVENTOS = "linear_regression:raventos dim=8 length=16 noise_variance=0.25"
REPEATED = "repeated_tokens vocabulary=8 period=7 distinct=true first=8"
ITEMS = "item_label classes=512 labels=16 pairs=8 dim=31 burstiness=2 within_class_noise=0.1"


def interleaved(p):
    """Tokens (x_1, 0), (0, y_1), (x_2, 0), ..."""
    import torch
    from torch.nn import functional as F

    return torch.stack([F.pad(p.x, (0, 1)), F.pad(p.y[..., None], (p.dim, 0))], 2).flatten(1, 2)


def concatenated(p):
    """Tokens (x_i, y_{i-1})."""
    import torch
    from torch.nn import functional as F

    return torch.cat([p.x, F.pad(p.y, (1, 0))[:, :-1, None]], -1)


def points(p):
    """Tokens (x_i, y_i), which the network makes into examples and queries itself."""
    import torch

    return torch.cat([p.x, p.y[..., None]], -1)


def placed(p):
    """Items and label vectors in turn, beside a one-hot place of 33 that begins at the first."""
    import torch

    pairs = torch.stack([p.items[:, :-1], p.label_vectors], 2).flatten(1, 2)
    content = torch.cat([pairs, p.items[:, -1:]], 1)
    return torch.cat([torch.eye(33)[: content.shape[1]].expand(len(content), -1, -1), content], -1)


# Name -> the predictor of a module, and the text of its task within its folder.
ADAPTERS = {
    "interleaved_gpt": (
        partial(models.FromTorch, features=interleaved, answers=lambda a: a[:, 0::2], arrangement=models.Interleaved()),
        f"{RAVENTOS} pool=tasks.npy",
    ),
    "concatenated_encoder": (models.FromTorch, RAVENTOS),
    "sdpa_blocks": (
        partial(models.FromTorch, features=points, answers=lambda a: a[..., 0], arrangement=JOINED),
        "linear_regression dim=8 length=16 inputs.covariance=0.125 noise_variance=0.1",
    ),
    "gru_regression": (
        partial(models.FromTorch, features=lambda p: concatenated(p).transpose(0, 1), answers=lambda a: a[..., 0].T),
        RAVENTOS,
    ),
    "deep_sets_pool": (
        partial(
            models.FromTorch,
            features=lambda p: {"inputs": p.x, "targets": p.y},
            answers=lambda a: a["prediction"],
        ),
        f"{RAVENTOS} pool=tasks.npy",
    ),
    "item_label_mha": (partial(models.FromTorch, features=placed, positions="last"), f"{ITEMS} vectors=vectors.npz"),
    "tracr_induction": (models.FromTorch, REPEATED),
    "firebrand_induction": (models.FromTorch, "repeated_tokens vocabulary=16 period=13 distinct=true"),
}
CHECKPOINTS = {"interleaved_gpt": "checkpoints/step_*.pt", "sdpa_blocks": "checkpoints/step_*.pt"}


def add(network, what, measured, expected):
    """A line of the table; ``measured`` and ``expected`` are numbers, or pairs with an error."""
    (value, error), (wish, wish_error) = (
        np.resize([*np.atleast_1d(pair), 0.0][:2], 2) for pair in (measured, expected)
    )
    ROWS.append((network, what, float(value), float(error), float(wish), float(wish_error)))
    print("| {} | {} | {:.4g} ± {:.2g} | {:.4g} ± {:.2g} | {:.1f} |".format(*ROWS[-1], deviation(ROWS[-1])), flush=True)


def deviation(row):
    """Difference of a line in joint standard errors; without errors, in the rounding of the numbers over four."""
    _, _, value, error, wish, wish_error = row
    return abs(value - wish) / max(math.hypot(error, wish_error), ROUNDING / MOST)


def pair(dataset, name, error=None, **where):
    """A number of a Dataset and its error."""
    return [float(dataset[part].sel(**where) if where else dataset[part]) for part in (name, error or f"{name}_error")]


def contract(name, network, task, wish=0.0):
    """1 if an answer changes with what it must not see, and 0 otherwise."""
    try:
        diagnostics.require_causal(network, task, key=KEYS[0])
        changes = 0.0
    except IclError as error:
        print(f"  {error}")
        changes = 1.0
    add(name, "contract: an answer changes with what follows", changes, wish)


def regression(name, network, task, expected, prompts):
    """Losses, candidates, memorising, heads."""
    contract(name, network, task)
    learns, fresh = expected["learns"], getattr(task, "fresh", lambda: task)()
    everyone = {"network": network, "mean": Mean(), "nearest": NearestNeighbours(1), "zero": Zero()}
    everyone |= {"ridge": algorithms.bayes_optimal(fresh)}
    if expected["memorised"]["number"] is not None:
        everyone |= {"dMMSE": algorithms.bayes_optimal(task)}
    losses = diagnostics.per_length(everyone, task, key=KEYS[1], prompts=prompts)
    for number, wish in zip((1, 4, 8, 16), learns["after 1, 4, 8, 16 examples"], strict=True):
        where = {"predictor": "network", "position": number}
        add(name, f"loss after {number}", pair(losses, "loss", "standard_error", **where), wish)
    for other, wish in learns["beside it"].items():
        add(name, f"loss of {other}", pair(losses, "loss", "standard_error", predictor=other, position=16), wish)
    found = diagnostics.identify(network, candidates(everyone, task), task, key=KEYS[2], prompts=prompts)
    print(f"  {found.attrs['summary']}")
    for other, wish in expected["algorithm"]["all"].items():
        if other == "nearest":  # a script counts gradients of zero, and the library none
            continue
        row = found.sel(candidate=other)
        low, high = row["fraction_unexplained_interval"].values
        value = float(row["fraction_unexplained"]), (high - low) / 3.92
        add(name, f"unexplained by {other}", value, wish["unexplained"])
    if "dMMSE" in everyone:
        memorising(name, network, (everyone["dMMSE"], everyone["ridge"]), (task, fresh), expected["memorised"], prompts)
    if "all" in expected["heads"]:
        effects = diagnostics.head_effects(network, task, key=KEYS[4], prompts=prompts, positions=slice(-1, None))
        for head, wish in expected["heads"]["all"].items():
            add(name, f"loss without {head}", pair(effects, "ablation_effect", attention_head=f"block{head}"), wish)


def candidates(everyone, task):
    """The candidates of the scripts: the Bayes predictors, and families with one fitted number."""
    unit = float(np.mean(np.square(task.sample_many(64, key=KEYS[0]).x)))
    rate = {"rate": 0.6 / unit, "dim": 8, "normalised": True, "half": True}
    fitted = {"ridge, fitted": diagnostics.Fitted(algorithms.Ridge(unit), ["ridge"])}
    for steps in (1, 2, 3, 4):
        descent = algorithms.GradientDescent(layers=steps, **rate)
        fitted[f"descent, {steps} steps"] = diagnostics.Fitted(descent, ["rate"])
    return fitted | {name: everyone[name] for name in ("ridge", "dMMSE", "nearest") if name in everyone}


def memorising(name, network, ends, both, expected, prompts):
    """The weight of the memorising predictor and distances, on the pool and on fresh tasks."""
    numbers = (("pool", both[0], "number"), ("fresh tasks", both[1], "fresh tasks"))
    for where, task, wish in numbers:
        found = diagnostics.mixture_weight(network, *ends, task, key=KEYS[3], prompts=prompts)
        number = expected[wish] if wish != "number" else [expected["number"], expected["error"]]
        add(name, f"p on {where}", pair(found, "mixture_weight"), number)
        label = "distances on the pool (to ridge, to dMMSE, of the two)" if where == "pool" else f"distances on {where}"
        for kind, square in zip(("to_second", "to_first", "between"), expected[label], strict=True):
            add(name, f"distance_{kind} on {where}", pair(found, f"distance_{kind}"), square)


def checkpoints(name, make, pattern, load, task, expected, prompts):
    """The loss after all examples at each checkpoint."""
    networks = icl.checkpoints(pattern, load)
    networks = {f"step {step}": make(network.module) for step, network in networks.items()}
    losses = diagnostics.per_length(networks, task, key=KEYS[5], prompts=prompts)
    for file, wish in expected["when"]["loss after 16 at each checkpoint"].items():
        step = f"step {int(Path(file).stem.rpartition('_')[2])}"
        add(name, f"loss at {step}", pair(losses, "loss", "standard_error", predictor=step, position=16), wish)


def items(name, network, task, expected, prompts):
    """Accuracies in context and in weights, with other vectors, and attention of the two heads."""
    contract(name, network, task)
    learns, heads = expected["learns"], expected["heads"]
    novel = tasks.parse(f"{ITEMS} vectors=vectors.npz p_novel=1")
    variants = {"IC": novel, "IC2": tasks.parse(f"{ITEMS} vectors=vectors.npz swapped=true")}
    variants |= {"IW": tasks.parse(f"{ITEMS} vectors=vectors.npz p_bursty=0")}
    variants |= {"IW purged": tasks.parse(f"{ITEMS} vectors=vectors.npz p_bursty=0 purged=true")}
    for kind, variant in variants.items():
        found = diagnostics.accuracy(network, variant, key=KEYS[1], prompts=prompts).isel(position=-1)
        wish = [learns["number"], learns["error"]] if kind == "IC" else learns[kind]
        add(name, f"accuracy, {kind}", pair(found, "accuracy"), wish)
    draws = [tasks.parse(f"{ITEMS} p_novel=1 key={seed}") for seed in range(1, 7)]
    other = [diagnostics.accuracy(network, draw, key=KEYS[1], prompts=prompts // 2) for draw in draws]
    other = [float(found["accuracy"].isel(position=-1)) for found in other]
    spread = [np.mean(other), np.std(other, ddof=1)]  # the expected number is that of one draw
    add(name, "accuracy, other label vectors", spread, learns["with label vectors of another draw"])
    found = diagnostics.progress_measures(network, novel, key=KEYS[2], prompts=prompts)
    patterns = heads["patterns"]
    wish = patterns["layer 0: label token to the item before it"]
    add(name, "attention of a label to its item", pair(found, "item_label_attention"), wish)
    wish = patterns["layer 1: query to labels of items of its class"]
    add(name, "attention of the query to right labels", pair(found, "target_attention"), wish)
    for block, wish in enumerate(heads["accuracy in context without a layer's head"].values()):
        without = models.ablated(network, heads=[(block, 0)])
        found = diagnostics.accuracy(without, novel, key=KEYS[3], prompts=prompts).isel(position=-1)
        add(name, f"accuracy without block{block}.0", pair(found, "accuracy"), wish)


def tokens(name, network, task, expected, prompts):
    """Accuracy on repeated tokens, scores of heads, and accuracies without some."""
    contract(name, network, task)
    place = int(task.task.period) + 2
    found = diagnostics.accuracy(network, task, key=KEYS[1], prompts=prompts).sel(position=slice(place, None))
    add(name, "accuracy on repeated tokens", float(found["accuracy"].mean()), expected["learns"]["number"])
    scores = diagnostics.head_scores(network, task, key=KEYS[2], prompts=64)
    patterns = expected["heads"].get("patterns", {"0.0": {"previous": 1.0}, "1.0": {"what followed": 1.0}})
    for head, wish in patterns.items():
        for kind, score in (("previous", "previous_token_score"), ("what followed", "prefix_matching_score")):
            if wish.get(kind) == 1.0:
                add(name, f"{score} of {head}", pair(scores, score, attention_head=f"block{head}"), 1.0)
    for head, wish in expected["heads"].get("accuracy without, where below 0.95", {}).items():
        without = models.ablated(network, heads=[tuple(map(int, head.split(".")))])
        found = diagnostics.accuracy(without, task, key=KEYS[3], prompts=64).isel(position=-1)
        add(name, f"head {head} is needed", float(float(found["accuracy"]) < 0.95), float(wish < 0.95))


def programs(name):
    """Which of the other compiled programs look ahead; a histogram answers numbers of 17 values, and no tokens."""
    task = tasks.parse(f"{REPEATED} ids=0,1,2,3,4,5,6,7")
    for program, wish in (("induction_not_causal", 1.0), ("reverse", 1.0), ("histogram", 0.0)):
        contract(f"{name} {program}", icl.network(f"network.py:{program}"), task, wish)
    try:
        diagnostics.accuracy(icl.network("network.py:histogram"), tasks.parse(REPEATED), key=KEYS[1], prompts=64)
        refused = 0.0
    except IclError as error:
        print(f"  {error}")
        refused = 1.0
    add(f"{name} histogram", "refused as a predictor of tokens", refused, 1.0)


def coefficients(folder):
    """Learning coefficients of one network by autograd and by a copy of its weights."""
    os.chdir(folder / "interleaved_gpt")
    make, text = ADAPTERS["interleaved_gpt"]
    network, task = make(icl.network("network.py:load").module), tasks.parse(text)
    copy = models.from_torch(network, embedding="wte", blocks="h", readout="head", task=task)
    for name, route in {"autograd": network, "the copy": copy}.items():
        start = time.perf_counter()
        posterior = diagnostics.LocalPosterior.from_network(
            route, task, key=KEYS[6], data=32, nbeta=8.0, localization=1e3
        )
        sampler = diagnostics.MALA(chains=4, warm_up=60, draws=60)
        found = diagnostics.coefficient_at_temperature(posterior, key=KEYS[7], sampler=sampler, checks=())
        yield name, [float(found["estimate"]), float(found["mcse"])], time.perf_counter() - start


def examined(name, expected, prompts):
    """All lines of one network, in its folder."""
    make, text = ADAPTERS[name]
    if name == "firebrand_induction":
        vocabulary = named("network.py:vocabulary")[1]
        network = make(icl.network("network.py:load").module)
        words = vocabulary()
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/ids.npy", [words[str(number)] for number in range(16)])
            task = tasks.parse(f"{text} first={words['<bos>']} ids={folder}/ids.npy")
        return tokens(name, network, task, expected, prompts)
    network, task = make(icl.network("network.py:load").module), tasks.parse(text)
    if name == "tracr_induction":
        tokens(name, network, task, expected, prompts)
        return programs(name)
    if name == "item_label_mha":
        return items(name, network, task, expected, prompts)
    regression(name, network, task, expected, prompts)
    if name in CHECKPOINTS:
        checkpoints(name, make, CHECKPOINTS[name], "network.py:load", task, expected, prompts)


def main():
    """Print the table; the exit status is 1 if a number deviates by more than four joint errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--only", default="", help="networks whose name has this text")
    parser.add_argument("--coefficient", action="store_true", help="only the coefficient by two routes")
    options = parser.parse_args()
    folder = options.folder.resolve()
    icl.cache_compilations()
    if options.coefficient:
        (_, first, _), (_, second, _) = found = list(coefficients(folder))
        print(*(f"{name}: {value[0]:.3f} ± {value[1]:.2g} in {seconds:.0f} s" for name, value, seconds in found))
        add("interleaved_gpt", "coefficient", first, second)
    for name in ADAPTERS if not options.coefficient else ():
        if options.only not in name or not (folder / name / "expected.json").is_file():
            continue
        os.chdir(folder / name)
        start = time.perf_counter()
        try:
            examined(name, json.loads(Path("expected.json").read_text()), options.prompts)
        except ModuleNotFoundError as error:
            print(f"{name}: skipped, {error}")
        print(f"  {name}: {time.perf_counter() - start:.0f} s", flush=True)
    wrong = [row for row in ROWS if not deviation(row) <= MOST]
    print(f"{len(ROWS)} numbers, {len(wrong)} deviate by more than {MOST:g} joint errors")
    for row in wrong:
        print(f"  {row[0]}: {row[1]}, {row[2]:.4g} instead of {row[4]:.4g}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
