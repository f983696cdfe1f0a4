"""Estimators on posteriors of known answer: coverage, bias, silent errors and seconds, from rows that are kept.

Rows are appended to a file of JSON lines as they are found, and rows that are there are not computed again: an
interrupted run goes on. ``--table`` prints the table from the rows alone. A silent error is an estimate that is more
than three stated errors and more than a tenth off, without a warning; it is the worst that an estimator can do.

Each estimator runs on the members that papers cite and on those of ``--keys``; its own key is the number of the run.
``--settings`` runs the ten settings of an estimator on twelve problems, each drawn by three keys, and the table has a
line for the best of them: the setting that comes nearest to the known answer of a problem, in the median over the keys.
A user does not know the answer and could not choose it.

Usage: python bench/posteriors.py [--estimators NAME ...] [--problems NAME ...] [--keys 1 2] [--runs 1] [--settings]
       [--rows bench/posteriors_rows.jsonl] [--table] [--answers]

Rows of "sgld", "sgld, long" and "sgld, calibrated" are in ``bench/calibration_rows.jsonl``: defaults, ten times as many
steps, and settings that are calibrated on the other problems, on the twelve problems of keys 203 and 204.

``--answers`` writes the answers of the package again, from the formulas and the table of populations. The rows of
devinterp 2.0.1 are taken with ``--estimators "devinterp sgmcmc_sgld"``: it is not a dependency, and neither is PyTorch.
"""

import argparse
import functools
import json
import math
import statistics
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import machine
import numpy as np

import icllab
from icllab import posteriors
from icllab.core.errors import InputError
from icllab.diagnostics import HMC, MALA, SGLD, coefficient_at_temperature, learning_coefficient
from icllab.posteriors import stored
from icllab.posteriors.problems import families
from icllab.posteriors.scores import WITHIN, Row, score, summaries

ROWS = Path(__file__).with_name("posteriors_rows.jsonl")


def _pair(dataset, value="estimate", error="mcse"):
    return float(dataset[value]), float(dataset[error])


def limit(posterior, *, key):
    """The library's limit, at its defaults."""
    dataset = learning_coefficient(posterior, key=key)
    return {"coefficient": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def at_temperature(posterior, *, key, sampler="auto"):
    """The library's estimate at one temperature, at its defaults or with a sampler."""
    dataset = coefficient_at_temperature(posterior, key=key, sampler=sampler)
    return {"level": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def at_temperature_float32(posterior, *, key):
    """The same in float32; nbeta eps L(w*) / 2 is the rounding of what is measured."""
    with jax.enable_x64(False):
        return at_temperature(posterior, key=jax.random.clone(key))


def at_temperature_quick(posterior, *, key):
    """Short chains without checks."""
    dataset = coefficient_at_temperature(posterior, key=key, sampler=HMC(chains=4, warm_up=200, draws=500), checks=())
    return {"level": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def sgld_calibrated(posterior, *, key, without):
    """Langevin dynamics with the settings that problems of other names propose; the proposal is part of its seconds."""
    of_settings, of_chains = jax.random.split(key)
    found = posteriors.calibrate_sampler(posterior, key=of_settings, seconds=10.0, without=without)
    estimate = at_temperature(posterior, key=of_chains, sampler=found.sampler)
    return estimate | {"warnings": [*estimate["warnings"], *found.warnings]}


def variance_alone(posterior, *, key):
    """The variance of nbeta L, which needs no baseline, as the level and the coefficient."""
    draws = HMC(chains=8).sample(posterior, key=key)
    squares = np.array([(posterior.nbeta * (chain - chain.mean())) ** 2 for chain in draws.losses])
    means = squares.mean(1)
    pair = float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))
    return {"variance": pair, "level": pair, "coefficient": pair}


def laplace(posterior, *, key):
    """Half the effective dimension of the Hessian at the point: no error, and no warning."""
    at = jnp.asarray(posterior.at)
    loss = posterior.loss if posterior.data is None else lambda w: posterior.loss(w, posterior.data)
    h = np.linalg.eigvalsh(np.asarray(jax.hessian(loss)(at)))
    share = np.clip(h, 0, None) * posterior.nbeta
    rank = int((h > 1e-9 * max(h.max(), 1e-300)).sum())
    return {
        "level": (float((share / (share + posterior.localization)).sum() / 2), None),
        "coefficient": (rank / 2, None),
    }


def dead_directions(posterior, *, key):
    """Half the directions that are not dead, after the abstract of arXiv 2606.21158.

    The curvature of a dead direction falls as the square of the distance from the point, so that the slope of the
    logarithm of the Hessian's determinant on that of the distance is twice their number.
    """
    loss = posterior.loss if posterior.data is None else lambda w: posterior.loss(w, posterior.data)
    at, curvatures = jnp.asarray(posterior.at), jax.jit(lambda w: jnp.linalg.eigvalsh(jax.hessian(loss)(w)))
    slopes = []
    for direction in jax.random.normal(key, (8, at.size)):
        near, far = (np.abs(curvatures(at + size * direction)) for size in (1e-3, 1e-2))
        seen = near > 1e-12 * near.max()
        slopes.append(float(np.log(far[seen] / near[seen]).sum() / math.log(10)))
    live = int(seen.sum()) - statistics.mean(slopes) / 2
    return {"coefficient": (live / 2, None), "level": (live / 2, None)}


def _of_chains(above):
    """Mean of n beta K over chains of draws, and its error from the chains' scatter."""
    means = np.asarray(above, np.float64).mean(1)
    pair = float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))
    return {"coefficient": pair, "level": pair}


def blackjax_batches(method):
    """Four chains of 1000 steps of blackjax on batches of 32, of which the last half counts.

    blackjax has no default step; 0.001 is devinterp's.
    """

    def estimate(posterior, *, key, step=1e-3):
        import blackjax

        if posterior.prior is not None:
            raise InputError("the prior is not that of the localization")
        at, data = jnp.asarray(posterior.at), posterior.data
        count = 0 if data is None else len(posterior.draft.tilt)
        loss = posterior.loss if count else lambda w, _: posterior.loss(w)

        def log_density(w, rows):
            return -posterior.nbeta * loss(w, rows) - posterior.localization / 2 * jnp.sum((w - at) ** 2)

        kernel = getattr(blackjax, method)(jax.grad(log_density))

        @jax.jit
        def chain(key, step):
            start, moves = jax.random.split(key)

            def move(state, key):
                rows = jax.random.choice(key, count, (32,)) if count else None
                rows = data if rows is None else {name: jnp.asarray(array)[rows] for name, array in data.items()}
                state = kernel.step(jax.random.fold_in(key, 1), state, rows, step)
                return state, posterior.nbeta * (loss(getattr(state, "position", state), data) - loss(at, data))

            return jax.lax.scan(move, kernel.init(at, start), jax.random.split(moves, 1000))[1]

        above = np.stack([chain(each, step)[500:] for each in jax.random.split(key, 4)])
        return _of_chains(above) | {"gradients": 4 * 1000}

    return estimate


def blackjax_nuts(posterior, *, key):
    """Four chains of 500 draws of blackjax's NUTS, after 500 steps of its adaptation."""
    import blackjax

    if posterior.prior is not None:
        raise InputError("the prior is not that of the localization")
    at, data = jnp.asarray(posterior.at), posterior.data
    loss = posterior.loss if data is None else lambda w: posterior.loss(w, data)

    def log_density(w):
        return -posterior.nbeta * loss(w) - posterior.localization / 2 * jnp.sum((w - at) ** 2)

    @jax.jit
    def chain(key):
        warm, moves = jax.random.split(key)
        (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(warm, at, num_steps=500)
        kernel = blackjax.nuts(log_density, **parameters)

        def move(state, key):
            state, info = kernel.step(key, state)
            return state, (posterior.nbeta * (loss(state.position) - loss(at)), info.num_integration_steps)

        return jax.lax.scan(move, state, jax.random.split(moves, 500))[1]

    above, steps = zip(*(chain(each) for each in jax.random.split(key, 4)), strict=True)
    return _of_chains(np.stack(above)) | {"gradients": float(np.sum(steps))}


def _rows_of_tokens(posterior):
    """The problem as devinterp takes it: a module, rows of two tokens, and the losses of the first tokens' samples."""
    import torch
    from datasets import Dataset

    torch.set_num_threads(1)
    model = posteriors.torch_module(posterior, dtype="float32")
    count = 1 if posterior.data is None else len(posterior.draft.tilt)
    numbers = np.arange(count * math.ceil(256 / count)) % count
    rows = Dataset.from_dict({"input_ids": [[int(number), 0] for number in numbers]}).with_format("torch")

    def losses(model, input_ids):
        each = model(input_ids[:, 0] if count > 1 else None)
        return each.expand(len(input_ids))[:, None] if each.ndim == 0 else each[:, None]

    return model, rows, losses


def devinterp(method):
    """devinterp's ``sample`` and ``compute_llc`` with the step of its README, and the rest left out."""

    def estimate(posterior, *, key, step=1e-3, localized=False):
        from devinterp.slt.llc import compute_llc
        from devinterp.slt.sampling import sample

        if posterior.prior is not None:
            raise InputError("devinterp has no prior")
        model, rows, losses = _rows_of_tokens(posterior)
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        options = {"lr": step, "n_beta": posterior.nbeta, "sampling_method": method, "init_seed": seed}
        options |= {"localization": posterior.localization, "num_burnin_steps": 200} if localized else {}
        warnings.filterwarnings("ignore", "Sampling without output_path")  # says nothing of the estimate
        try:
            tree = sample(model, rows, {}, loss_fn=losses, device="cpu", **options)
        except Exception as error:  # chains that ran to infinity
            raise InputError(f"{type(error).__name__}: {error}") from error
        result = compute_llc(tree)
        if localized:  # compute_llc averages the burn-in too
            above = posterior.nbeta * (result["loss_trace"] - result["init_loss"])
            return _of_chains(above.transpose("chain", "step").values[:, 200:]) | {"gradients": 4 * 400}
        pair = float(result["llc_mean"]), float(result["llc_std"]) / math.sqrt(result.sizes["chain"])
        return {"coefficient": pair, "level": pair, "gradients": 4 * 200}

    return estimate


def devinterp_sgnht(posterior, *, key, step=1e-3):
    """devinterp's ``SGMCMC.sgnht`` by ``sample_single_chain``: four chains of 200 draws without a burn-in.

    It cannot localize: the localization is a term of the loss that it samples, and the loss alone is what counts.
    """
    import torch
    from devinterp.optim.sgmcmc import SGMCMC
    from devinterp.slt.sampler import sample_single_chain

    if posterior.prior is not None:
        raise InputError("devinterp has no prior")
    model, rows, losses = _rows_of_tokens(posterior)
    start, pull = model.w.detach().clone(), posterior.localization / (2 * posterior.nbeta)
    level = float(losses(model, rows[:]["input_ids"]).mean())
    seed, above = int(jax.random.randint(key, (), 0, 2**31 - 5)), np.full((4, 200), np.nan)

    def evaluate(model, batch):
        return losses(model, batch["input_ids"]) + pull * ((model.w - start) ** 2).sum(), {}

    def note(*, loss, draw, chain, model, **_):
        drift = pull * float(((model.w - start) ** 2).sum())
        above[chain, draw] = posterior.nbeta * (float(loss.mean()) - drift - level)

    for number in range(4):
        options = {"chain": number, "seed": seed + number, "dataloader_seed": seed + number, "callbacks": [note]}
        options |= {"sampling_method_kwargs": {"lr": step, "nbeta": posterior.nbeta}, "batch_size": 32}
        try:
            sample_single_chain(
                model, rows, evaluate, {"w": None}, 200, sampling_method=SGMCMC.sgnht, device="cpu", **options
            )
        except torch.linalg.LinAlgError as error:
            raise InputError(str(error)) from error
    if not np.isfinite(above).all():
        raise InputError("a chain ran to infinity")
    return _of_chains(above) | {"gradients": 4 * 200}


ESTIMATORS = {
    "limit": limit,
    "at temperature": at_temperature,
    "at temperature, float32": at_temperature_float32,
    "at temperature, 4 x 500": at_temperature_quick,
    "sgld": functools.partial(at_temperature, sampler=SGLD()),
    "sgld, long": functools.partial(at_temperature, sampler=SGLD(warm_up=20_000)),
    "sgld, calibrated": sgld_calibrated,
    "variance alone": variance_alone,
    "laplace": laplace,
    "dead directions": dead_directions,
    "devinterp sgmcmc_sgld": devinterp("sgmcmc_sgld"),
    "devinterp rmsprop_sgld": devinterp("rmsprop_sgld"),
    "devinterp sgnht": devinterp_sgnht,
    "blackjax sgld": blackjax_batches("sgld"),
    "blackjax sgnht": blackjax_batches("sgnht"),
    "blackjax nuts": blackjax_nuts,
}

TWELVE = ("quadratic", "stiff", "crossing_1_2", "crossing_1_1", "powers", "layers_2_2_2_rank_0", "regression")
TWELVE += ("product_regression", "tanh_1", "induction_saddle", "losses_with_offsets", "beside_the_minimum")
KEYS = (1, 2, 3)
_SAMPLERS = [HMC(leapfrogs=count) for count in (3, 6, 24, 48)] + [
    *(HMC(chains=4), HMC(chains=16), HMC(draws=250), HMC(warm_up=2000), HMC(warm_up=100), MALA()),
]
_STEPS = [float(f"{step:.1e}") for step in np.logspace(-7.5, -3, 10)]
_THEIRS = [{"step": step, "localized": localized} for localized in (False, True) for step in (1e-7, 1e-6, 1e-5, 1e-4)]
_THEIRS += [{"step": 1e-3, "localized": True}, {"step": 1e-8, "localized": True}]
SETTINGS = {
    "at temperature": [{"sampler": sampler} for sampler in _SAMPLERS],
    "devinterp sgmcmc_sgld": _THEIRS,
    "devinterp rmsprop_sgld": _THEIRS,
    "devinterp sgnht": [{"step": step} for step in _STEPS],
    "blackjax sgld": [{"step": step} for step in _STEPS],
    "blackjax sgnht": [{"step": 30 * step} for step in _STEPS],
}


def write_answers():
    """Write the answers of the package; print their digest."""
    found = {
        name: [posteriors.problem(name, setting=i).draft.answers() for i in range(len(family.settings))]
        for name, family in families().items()
    }
    file = Path(icllab.__file__).parent / "posteriors" / "answers.json"
    file.write_text(stored.written(found, posteriors.version()))
    stored.stored_answers.cache_clear()
    print(posteriors.digest())


def rows_of(file):
    """Rows of a file by estimator, problem, key and run."""
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        run = entry["estimator"], entry["problem"], entry["key"], entry["run"]
        rows = [Row(**{**row, "warnings": tuple(row["warnings"])}) for row in entry["rows"]]
        found[run] = rows
    return found


def best_of_settings(found, name):
    """Rows of the settings that come nearest to the known answers, of an estimator without the name of a setting."""
    best = []
    for problem in TWELVE:
        for quantity in ("coefficient", "level"):
            off = {}
            for (run, problem_of, _, _), rows in found.items():
                if run.startswith(f"{name} | ") and problem_of == problem:
                    near = [row for row in rows if row.quantity == quantity and row.answer]
                    off.setdefault(run, []).extend(
                        abs(row.value / row.answer - 1) if math.isfinite(row.value) else math.inf for row in near
                    )
            off = {run: statistics.median(values) for run, values in off.items() if values}
            if off:
                nearest = min(off, key=off.get)
                best += [
                    row
                    for (run, problem_of, _, _), rows in found.items()
                    if (run, problem_of) == (nearest, problem)
                    for row in rows
                    if row.quantity == quantity
                ]
    return best


HEADERS = ("estimator", "quantity", "difficulty", "runs", "none", "in 50 %", "in 90 %", "off by", "wrong, warned")
HEADERS += ("silent", "CPU s")


def table(found):
    """A line for each estimator, quantity and difficulty, and two for those with settings on the twelve."""
    lines = []
    for name in ESTIMATORS:
        fixed = [row for run, rows in found.items() if run[0] == name and run[2] is None for row in rows]
        drawn = [row for run, rows in found.items() if run[0] == name and run[2] not in (None, *KEYS) for row in rows]
        twelve = [
            row for run, rows in found.items() if run[0] == name and run[1] in TWELVE and run[2] in KEYS for row in rows
        ]
        lines += _lines(name, fixed)
        lines += _lines(f"{name}, drawn", drawn)
        lines += _lines(f"{name}, twelve", twelve, pooled=True)
        lines += _lines(f"{name}, best of ten", best_of_settings(found, name), pooled=True)
    return lines


def _lines(name, rows, pooled=False):
    """Lines of the table, one for each quantity and difficulty, or one for all difficulties together.

    Of one number for the coefficient and for the level, the level is shown.
    """
    levels = {(row.problem, row.key): str(row.value) for row in rows if row.quantity == "level"}
    single = [row for row in rows if row.quantity == "coefficient"]
    if single and all(levels.get((row.problem, row.key)) == str(row.value) for row in single):
        rows = [row for row in rows if row.quantity != "coefficient"]
    if pooled:
        rows = [Row(**{**asdict(row), "difficulty": "regular"}) for row in rows]
    lines = []
    for summary in summaries(rows):
        within = [
            f"{100 * summary.coverage[level][0]:.0f} ± {100 * summary.coverage[level][1]:.0f}"
            if summary.coverage
            else ""
            for level in WITHIN
        ]
        off = f"{100 * round(summary.bias, 6):.3g} %" if math.isfinite(summary.bias) else ""
        difficulty = "all" if pooled else summary.difficulty
        counts = (summary.count, summary.missing, *within, off, summary.wrong, summary.unwarned, summary.seconds)
        lines.append((name, summary.quantity, difficulty, *counts))
    return lines


def main():
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ours = [name for name in ESTIMATORS if not name.startswith(("devinterp", "sgld"))]
    parser.add_argument("--estimators", nargs="+", default=ours, choices=list(ESTIMATORS))
    parser.add_argument("--problems", nargs="+", default=None)
    parser.add_argument("--keys", type=int, nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=1, help="with other keys of the estimator")
    parser.add_argument("--settings", action="store_true", help="the ten settings, on twelve problems of three keys")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--answers", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.answers:
        return write_answers()
    found = rows_of(arguments.rows)
    for name in () if arguments.table else arguments.estimators:
        settings = SETTINGS[name] if arguments.settings else [{}]
        keys = KEYS if arguments.settings else (None, *arguments.keys)
        for problem in arguments.problems or (TWELVE if arguments.settings else posteriors.names()):
            for key in keys:
                for run in range(arguments.runs):
                    for setting in settings:
                        _run(found, arguments.rows, name, problem, key, run, setting)
    machine.table(table(found), HEADERS)
    return None


def _run(found, file, name, problem, key, run, setting):
    """Run an estimator once, unless its rows are there, and append its rows to the file."""
    label = name if not setting else f"{name} | {', '.join(f'{option}={value}' for option, value in setting.items())}"
    if (label, problem, key, run) in found:
        return
    options = setting | ({"without": (problem,)} if name == "sgld, calibrated" else {})
    rows = list(score(functools.partial(ESTIMATORS[name], **options), problems=[problem], keys=[key], seed=run))
    found[label, problem, key, run] = rows
    entry = {"estimator": label, "problem": problem, "key": key, "run": run, "digest": posteriors.digest()}
    machine.append(file, entry | {"rows": [asdict(row) for row in rows]})
    for row in rows:
        text = f"{row.answer:.4g} {'silent' if row.unwarned else 'wrong' if row.wrong else ''}"
        print(f"{label}: {problem} {row.quantity} {row.value:.4g} ± {row.error:.2g}, {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
