r"""The landscape of three numbers beside a network that learns: the order of events it has right, the curve it has not.

A network of two layers of attention and a classifier is trained, and the landscape's numbers are read off it at every
record: y is the attention from labels to their items, z that from the query to the right label, and

.. math:: \xi = \frac{E[\text{logit of the right label}] - E[\text{mean logit of labels out of context}]}{z} .

With these the landscape states a loss, which is compared with that of the network (``read_off``); and again with z'
measured too, in place of :math:`(1-z)/2N` (``labels``). Then a flow on the landscape is fitted to the curve of the
loss: from the origin with one rate for all (``common``), with a rate and a start of its own for each strength
(``three``), and with :math:`\beta_2`, the preference for labels (``four``). The fits with three rates are profiled: one
rate is held at another value, and all else fitted again.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory.induction_landscape import previous_token_attention

NUMBERS = ("xi", "y", "z")  # of the landscape, as they are read off
READ_OFF, FITTED = ("labels", "read_off"), ("common", "three", "four")
MISFIT = 0.1  # nats, of the root mean square: what counts as a fit
NEAR = 1.25  # of the misfit of the best fit: a rate whose profile stays below could as well be another
PAIRS, LABELS = 4, 16


def measure(point, *, key):
    """One cell: networks of all seeds, what is read off them, and the fits to their losses."""
    import jax

    from icllab.claims.induction import _networks as induction_networks
    from icllab.diagnostics.behaviour import landscape_numbers

    of_networks = jax.random.fold_in(key, 2**31 - 1)
    changes = {"pairs": point.pairs, "labels": point.label_count}
    drawn = induction_networks.networks(induction_networks.task(key=key, **changes), seeds=point.seed, key=of_networks)
    rows = []
    for s, seed in enumerate(point.seed):
        of_task, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 3)
        law = induction_networks.task(key=of_task, **changes)
        run = induction_networks.trained(law, drawn.member(s), steps=point.step, key=of_prompts, batch=point.batch)
        asked = law.in_context().sample_many(point.prompts, key=of_test)
        rows.append([landscape_numbers.read(run.trajectory.at(t).member(0), law, asked) for t in point.step])
    read = np.asarray(rows, float)  # [seed, step, (xi, y, z, z', loss)]
    found = {
        "landscape_number": (("seed", "step", "number"), read[..., [NUMBERS.index(n) for n in point.number]]),
        "label_loss": (("seed", "step"), read[..., 4]),
        "other_attention": (("seed", "step"), read[..., 3]),
    }
    if hasattr(point, "form"):
        with jax.enable_x64(True):
            found |= _fits(read[..., 4], point, key)
    return found


def _fits(losses, point, key):
    """Fits of every form to the loss of every seed, and the profiles of the rates."""
    import jax

    from icllab.diagnostics.curves import flow_fits

    how = {"pairs": point.pairs, "labels": point.label_count, "iterations": point.iterations}
    times = np.asarray(point.step) / 1000.0
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    seeds, rates = len(losses), np.full((len(losses), len(point.form), 4), np.nan)
    misfit, begin = np.full((seeds, len(point.form)), np.nan), rates.copy()
    profile = np.full((seeds, 3, len(point.factor)), np.nan)
    for f, form in enumerate(point.form):
        n = 4 if form == "four" else 3
        count = 1 if form == "common" else point.restarts
        starts = np.concatenate(
            [np.log(point.rate_guess) + rng.normal(0, 1, (count, n)), rng.normal(0, 1, (count, n))], 1
        )
        free = np.ones_like(starts)
        if form == "common":  # from the origin, and one rate
            starts = np.concatenate(
                [np.full((8, n), np.log(point.rate_guess) + np.linspace(-2, 2, 8)[:, None]), np.zeros((8, n))], 1
            )
            free = np.concatenate([np.ones((8, 1)), np.zeros((8, 2 * n - 1))], 1)
        many = len(starts)
        tiled = (np.tile(starts, (seeds, 1)), np.tile(free, (seeds, 1)))
        found = flow_fits.fits(np.repeat(losses, many, 0), times, *tiled, tied=form == "common", **how)
        best = [flow_fits.best(found[s * many : (s + 1) * many]) for s in range(seeds)]
        for s, fit in enumerate(best):
            misfit[s, f], rates[s, f, :n], begin[s, f, :n] = fit.rmse, fit.rates, fit.start
        if form == "three":
            centres = np.stack([np.concatenate([np.log(fit.rates), fit.start]) for fit in best])
            held = [(s, i, k) for s in range(seeds) for i in range(3) for k in range(len(point.factor))]
            starts = np.stack([centres[s] + np.log(point.factor[k]) * np.eye(6)[i] for s, i, k in held])
            free = np.stack([1 - np.eye(6)[i] for _, i, _ in held])
            # From the best fit, and from places near it.
            many = 1 + point.perturbed
            away = rng.normal(0, 0.5, (many, len(held), 6)) * free
            away[0] = 0.0
            again = flow_fits.fits(
                np.tile([losses[s] for s, _, _ in held], (many, 1)),
                times,
                (starts + away).reshape(-1, 6),
                np.tile(free, (many, 1)),
                **how,
            )
            reached = np.array([fit.rmse for fit in again]).reshape(many, -1)
            reached = np.where(np.isfinite(reached), reached, np.inf).min(0)
            for at, rmse in zip(held, reached, strict=True):
                profile[at] = rmse
    order = [("beta", "alpha", "xi", "beta2").index(name) for name in point.strength]
    return {
        "misfit": (("seed", "form"), misfit),
        "fitted_rate": (("seed", "form", "strength"), rates[..., order]),
        "fitted_start": (("seed", "form", "strength"), begin[..., order]),
        "profile": (("seed", "strength", "factor"), np.concatenate([profile, profile[:, :1] * np.nan], 1)[:, order]),
    }


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """When each number is half-way, and the loss that the landscape states with what was read off."""
    pairs, labels = (fixed_values(dataset)[name] for name in ("pairs", "label_count"))
    numbers = dataset["landscape_number"]
    times = np.stack(
        [[_half_way(numbers.sel(seed=s, number=n)) for n in numbers.number.values] for s in numbers.seed.values]
    )
    xi, z = (numbers.sel(number=name, drop=True) for name in ("xi", "z"))
    stated = {
        "read_off": _stated(xi, z, (1 - z) / (2 * pairs), pairs, labels),
        "labels": _stated(xi, z, dataset["other_attention"], pairs, labels),
    }
    shown = xr.concat(list(stated.values()), xr.Variable("reading", list(stated)))
    misfit = ((shown - dataset["label_loss"]) ** 2).mean("step") ** 0.5
    added = dataset.assign(
        half_time=(("seed", "number"), times),
        stated_loss=shown.transpose("reading", "seed", "step"),
        stated_misfit=misfit.transpose("reading", "seed"),
    )
    return added.assign(label_loss_line=dataset["label_loss"].mean("seed"))


def _stated(xi: xr.DataArray, right: xr.DataArray, other: xr.DataArray, pairs: int, labels: int) -> xr.DataArray:
    """The landscape's loss, from what attention gives to the right label and to each other one."""
    others = (pairs - 1) * np.exp(-xi * (right - other)) + (labels - pairs) * np.exp(-xi * right)
    return xr.apply_ufunc(np.log1p, others)


def _half_way(curve: xr.DataArray) -> float:
    """When a curve is first half-way from its beginning to its end; NaN if it hardly goes anywhere."""
    t, v = curve.step.values.astype(float), curve.values
    begin, end = v[0], v[-max(len(v) // 10, 1) :].mean()
    if not abs(end - begin) > 0.3 * max(abs(end), abs(begin)):
        return np.nan
    u = (v - begin) / (end - begin)
    i = int(np.argmax(u >= 0.5))
    return float(t[i - 1] + (t[i] - t[i - 1]) * (0.5 - u[i - 1]) / (u[i] - u[i - 1])) if i else np.nan


def learned(dataset: xr.Dataset) -> np.ndarray:
    """Which seeds have made the transition: their loss ends below a quarter of ln N."""
    pairs = fixed_values(dataset)["pairs"]
    return (dataset["label_loss"].isel(step=-1) < np.log(pairs) / 4).values


def check(dataset: xr.Dataset) -> list[Finding]:
    """The reader before both attentions; no parameter-free fit; a fit with six numbers, and rates it does not fix."""
    there = learned(dataset)
    several = int(there.sum()) > 1
    findings = [
        exactly("seeds that learn", there.size, int(there.sum()), otherwise=Outcome.UNDECIDED),
        exactly("several seeds that learn", 1, several, otherwise=Outcome.UNDECIDED),
    ]
    if not several:
        return findings
    dataset = dataset.isel(seed=there)
    times = dataset["half_time"]
    for name, said in (("y", "attention to the item, layer 1"), ("z", "attention to the right label, layer 2")):
        lead = np.log((times.sel(number=name) / times.sel(number="xi")).values)
        findings.append(_above(f"log time of half of the {said}, over that of the reader", lead))
    for name in dataset.reading.values:
        off = dataset["stated_misfit"].sel(reading=name).values
        findings.append(_above(f"misfit of the loss that is stated, {name} [nats]", off, MISFIT))
    forms = [str(form) for form in dataset.form.values] if "form" in dataset.dims else []
    if "common" in forms:
        off = dataset["misfit"].sel(form="common").values
        findings.append(_above("misfit of the flow from the origin at one rate [nats]", off, MISFIT))
    for form in (form for form in ("three", "four") if form in forms):
        off = dataset["misfit"].sel(form=form).values
        findings.append(_above(f"{MISFIT:g} above the misfit of {form} rates and starts [nats]", MISFIT - off))
    if "three" in forms:
        findings.append(_above("log of the range of the least known rate, above log 2", _range(dataset) - np.log(2)))
        begun = _stored(dataset["fitted_start"].sel(form="three", strength="beta").values)
        there = dataset["landscape_number"].isel(step=0).sel(number="y").values
        findings.append(_above("attention y that the fit begins with, above the network's", begun - there))
    missing = len({"common", "three", "four"} - set(forms))
    findings.append(exactly("forms of the flow that are missing", 0, missing, otherwise=Outcome.UNDECIDED))
    return findings


def _stored(beta: np.ndarray) -> np.ndarray:
    """The attention y of a strength."""
    return np.asarray(previous_token_attention(beta, pairs=PAIRS))


def _range(dataset: xr.Dataset) -> np.ndarray:
    """Of each seed: the largest log ratio, over rates, of values that all fit nearly as well as the best."""
    profile = np.asarray(dataset["profile"].transpose("seed", "strength", "factor"))
    best = np.minimum(np.asarray(dataset["misfit"].sel(form="three")), np.nanmin(profile, axis=(1, 2)))
    well = profile <= NEAR * best[:, None, None]
    logs = np.log(dataset["factor"].values)
    wide = np.where(well, logs, -np.inf).max(-1) - np.where(well, logs, np.inf).min(-1)
    return np.where(well.any(-1), wide, 0.0).max(-1)


def _above(what: str, samples: np.ndarray, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """The reader and the two attentions over training, and the loss beside what the landscape states.

    Time is in units of that at which attention to the right label is half-way, since the seeds' times differ.
    """
    numbers = dataset["landscape_number"]
    unit = dataset["half_time"].sel(number="z", drop=True)
    names = {"xi": r"reader $\xi$", "y": "attention $y$", "z": "attention $z$"}
    readings = {"read_off": "stated loss", "labels": "stated loss, $z'$ measured"}
    first = (numbers / numbers.isel(step=-1)).rename(number="series")
    first = first.assign_coords(series=[names[str(n)] for n in numbers.number.values])
    second = dataset["stated_loss"].rename(reading="series")
    second = second.assign_coords(series=[readings[str(n)] for n in dataset["reading"].values])
    together = xr.Dataset({"landscape_number": first, "stated_loss": second, "label_loss": dataset["label_loss"]})
    shown = xr.concat([_in_units(together.sel(seed=s), float(unit.sel(seed=s))) for s in unit.seed.values], "seed")
    shown["label_loss_line"] = shown["label_loss"].mean("seed")
    rows = [Panel("landscape_number"), Panel("stated_loss", "label_loss_line")]
    return panels(shown, rows, x="relative_time", hue="series", line_x="relative_time", line_name="loss")


def _in_units(one: xr.Dataset, unit: float) -> xr.Dataset:
    """One seed on a grid of times over its own."""
    unit = unit if np.isfinite(unit) else float(one.step[-1])
    grid = np.linspace(0, 1.4, 36)
    there = one.assign_coords(step=one.step.values / unit).interp(step=grid)
    return there.rename(step="relative_time")


def _attention_first(dataset: xr.Dataset) -> xr.Dataset:
    """The reader and the attentions change places, as if they formed first and it grew at the cliff; all learn."""
    dataset = dataset.assign(label_loss=0.0 * dataset["label_loss"])
    times = xr.zeros_like(theory(dataset)["half_time"])
    late = xr.where(times.number == "xi", 1400.0, 700.0) * (1 + 0.02 * times.seed)
    return theory(dataset).assign(half_time=late.transpose("seed", "number") + times)


def _exact(dataset: xr.Dataset) -> xr.Dataset:
    """The networks have the loss that the landscape states; all learn."""
    done = theory(dataset.assign(label_loss=0.0 * dataset["label_loss"]))
    return done.assign(stated_misfit=xr.zeros_like(done["stated_misfit"]))


SMALL = {
    "step": tuple(range(0, 3001, 50)),
    "number": NUMBERS,
    "form": FITTED,
    "strength": ("beta", "alpha", "xi", "beta2"),
    "factor": (0.25, 0.5, 1.0, 2.0, 4.0),
}

experiment = Experiment(
    claim=(
        "In a network the reader is half-way before both attentions are, as on the landscape. The loss that the "
        "landscape states with the network's own numbers is off by more than 0.1 nats, and so is the flow from the "
        "origin at one rate. With a rate and a start for each strength it comes nearer than that, and begins where the "
        "network does not; at least one rate is known to no better than a factor of two."
    ),
    sources=("Reddy24",),
    static=(),
    fixed={
        "pairs": PAIRS,
        "label_count": LABELS,
        "batch": 128,
        "prompts": 1024,
        "restarts": 24,
        "iterations": 60,
        "perturbed": 3,
        "rate_guess": 28.0,
    },
    sizes={
        "smoke": {"step": (0, 20, 40), "number": NUMBERS, "seed": 2},
        "small": SMALL | {"seed": 6},
        "medium": SMALL | {"step": tuple(range(0, 4001, 25)), "seed": 12},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "attention_first": World("attention forms before the reader grows", theory=_attention_first),
        "exact": World("the loss is the one that the landscape states", theory=_exact),
    },
)
