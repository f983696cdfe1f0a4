r"""Layers of linear attention that may not change their inputs become the best steps of gradient descent.

:math:`P_l = \mathrm{diag}(0, 1)` and :math:`Q_l = \mathrm{diag}(-A_l, 0)`, with all entries of the :math:`A_l` trained
from random starts: L steps of gradient descent with any preconditioners. The law is :math:`x, w\sim\mathcal N(0, I)`
without noise, where the best that step sizes :math:`A_l = a_lI` can do is known exactly.

The order of the steps has no effect on the answer, so networks may take them in any. For the probe the best step sizes
are put into the order of the network's :math:`\mathrm{tr}\,A_l`; then the label slot of layer l should hold
:math:`y_i - f_l(x_i)`, what these l steps leave of the label.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import descent, preconditioners

REACHED = 1.05  # loss over that of the best steps
HELD = 0.9  # share of the label slots that the step of the same number explains


def measure(point, *, key, trained=True):
    """One cell: networks of one depth; in a wrong world they are left as they start."""
    import jax

    from icllab import diagnostics
    from icllab.claims.descent import _layers as trained_layers
    from icllab.tasks import LinearRegression

    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_probe = jax.random.split(key, 3)
    how = {"layers": point.layers, "seeds": point.seed, "std": point.std, "key": of_training}
    if trained:
        training = {"steps": point.step, "batch": point.batch, "rate": point.rate, "clip": point.clip}
        networks = trained_layers.trained(task, "sparse", **how, **training).members
    else:
        networks = trained_layers.starts("sparse", dim=point.dim, **how)
    best = {"free": descent.free_steps(**size, layers=point.layers).rates}
    best["tied"] = descent.tied_steps(**size, layers=point.layers).rates
    references = [trained_layers.running(rates, dim=point.dim)[1] for rates in best.values()]
    ratios = ("loss_ratio", "loss_ratio_error", "tied_ratio", "tied_ratio_error")
    found = {name: np.empty(len(point.seed)) for name in ("test_loss", "heaviest", *ratios)}
    shape = (len(point.seed), point.layers + 1)
    sizes, distances = (np.full(shape, np.nan) for _ in range(2))
    held = np.full((*shape, point.layers + 1), np.nan)
    for s, seed in enumerate(point.seed):
        network = networks.member(s)
        asked = {"key": jax.random.fold_in(of_test, seed), "prompts": point.prompts * point.dim**2}
        terms = trained_layers.on_shared_prompts([network, *references], task, **asked)
        row = (*trained_layers.ratio(terms[0], terms[1]), *trained_layers.ratio(terms[0], terms[2]))
        for name, value in zip(ratios, row, strict=True):
            found[name][s] = value
        found["test_loss"][s], found["heaviest"][s] = terms[0].mean(), trained_layers.heavy(terms[0])
        matrices = trained_layers.blocks(network)[0]
        sizes[s, 1:] = np.trace(matrices, axis1=1, axis2=2) / point.dim
        distances[s, 1:] = preconditioners.identity_distance(matrices)
        order = np.argsort(np.argsort(-sizes[s, 1:]))  # the rank of each layer's step among all
        algorithm = trained_layers.running(best["free"][order], dim=point.dim)[0]
        probed = {"key": jax.random.fold_in(of_probe, seed), "prompts": point.probed}
        probe = diagnostics.probe_layers(network, algorithm, task, resamples=2, **probed)
        held[s] = probe["r_squared"].sel(slot="example").values
    return {
        **{name: (("seed",), values) for name, values in found.items()},
        "step_size": (("seed", "layer"), _padded(sizes, point)),
        "step_distance": (("seed", "layer"), _padded(distances, point)),
        "r_squared": (("seed", "layer", "algorithm_step"), _padded(held, point)),
    }


def _padded(values: np.ndarray, point) -> np.ndarray:
    """Over the layers and steps asked for, NaN where the network has none."""
    axes = [point.layer, point.algorithm_step][: values.ndim - 1]
    for axis, asked in enumerate(axes, start=1):
        missing = np.full_like(values.take([0], axis), np.nan)
        parts = [values.take([i], axis) if i < values.shape[axis] else missing for i in asked]
        values = np.concatenate(parts, axis)
    return values


def theory(dataset: xr.Dataset, steps=descent.free_steps) -> xr.Dataset:
    """The exact losses of the best steps, each its own size and one size for all."""
    length = fixed_values(dataset)["length"]
    lines = {}
    for name, formula in (("free_line", steps), ("tied_line", descent.tied_steps)):
        values = [
            [formula(dim=int(d), length=length, layers=int(b)).loss for b in dataset.layers.values]
            for d in dataset.dim.values
        ]
        lines[name] = (("dim", "layers"), np.array(values))
    return dataset.assign(lines)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every depth reaches the loss of the best steps and none less; every layer holds the step of its number."""
    findings = []
    for dim in dataset.dim.values:
        for layers in dataset.layers.values:
            part, at = dataset.sel(dim=dim, layers=layers).isel(step=-1), f"{layers} layers, d={dim}"
            mean, error = mean_and_error(part["loss_ratio"].values)
            findings.append(
                exceeds(
                    f"{REACHED:g} above loss over that of the best steps, {at}", REACHED - float(mean), float(error)
                )
            )
            findings += _slots(part, int(layers), at)
    below = int(((1 - dataset["loss_ratio"]) / dataset["loss_ratio_error"] > 3).sum())
    findings.append(exactly("networks below the best steps by 3 paired standard errors", 0, below))
    findings.append(exactly("more than one depth", 1, dataset.sizes["layers"] > 1, otherwise=Outcome.UNDECIDED))
    return findings


def _slots(part: xr.Dataset, layers: int, at: str) -> list[Finding]:
    """What the step of the layer's own number explains of its label slots, and how much more than any other step."""
    held = part["r_squared"].sel(layer=slice(1, layers), algorithm_step=slice(0, layers))
    own = np.stack([held.sel(layer=k, algorithm_step=k).values for k in range(1, layers + 1)])
    others = np.stack(
        [held.sel(layer=k).drop_sel(algorithm_step=k).max("algorithm_step").values for k in range(1, layers + 1)]
    )
    findings = []
    for what, samples, bound in (
        (f"share of the label slots that the layer's own step explains, least, {at}", own.min(0), HELD),
        (f"the same above that of any other step, least, {at}", (own - others).min(0), 0.0),
    ):
        mean, error = mean_and_error(samples)
        findings.append(exceeds(what, float(mean), float(error), bound=bound))
    return findings


def figure(dataset: xr.Dataset):
    """The loss against layers beside the exact lines, and what a layer's own step leaves of its label slots."""
    part = dataset.isel(dim=-1, step=-1, drop=True)
    own = [part["r_squared"].sel(layer=k, algorithm_step=k, drop=True) for k in part.layer.values if k > 0]
    left = 1 - xr.concat(own, "layer").mean("layer")
    names = ["trained", "one step size"]
    shown = xr.Dataset(
        {
            "test_loss": xr.concat([part["test_loss"], part["test_loss"] / part["tied_ratio"]], "predictor"),
            "exact_loss": xr.concat([part["free_line"], part["tied_line"]], "predictor"),
            "slots_left": xr.concat([left, xr.full_like(left, np.nan)], "predictor"),
        },
        coords={"predictor": names},
    )
    rows = [Panel("test_loss", "exact_loss", yscale="log"), Panel("slots_left", yscale="log")]
    found = panels(shown, rows, x="layers", hue="predictor", line_x="layers", line_name="exact")
    found.axes[-1].set_xticks(dataset.layers.values)
    return found


def beside_shared_steps(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: the best steps are taken to be of one size."""
    other = {"loss_ratio": dataset["tied_ratio"], "loss_ratio_error": dataset["tied_ratio_error"]}
    return theory(dataset.assign(other), steps=descent.tied_steps)


experiment = Experiment(
    claim=(
        "Up to four layers of linear attention that may not change their inputs, with a free matrix in each that is "
        "trained from a random start, have the loss of the best steps of gradient descent, each of its own size, to "
        "within 5 % and never below it; the label slots of layer l hold what l of these steps leave of the labels."
    ),
    sources=("Ahn23", "vonOswald23"),
    static=("dim", "layers", "step"),
    fixed={
        "length": 20,
        "std": 0.3,
        "batch": 256,
        "rate": 0.03,
        "clip": 1.0,
        "prompts": 4000,
        "probed": 256,
    },
    sizes={
        "smoke": {
            "dim": (2,),
            "layers": (2,),
            "step": (400,),
            "layer": (0, 1, 2),
            "algorithm_step": (0, 1, 2),
            "seed": 2,
        },
        "small": {
            "dim": (5,),
            "layers": (1, 2, 3, 4),
            "step": (3000,),
            "layer": (0, 1, 2, 3, 4),
            "algorithm_step": (0, 1, 2, 3, 4),
            "seed": 4,
        },
        "medium": {
            "dim": (5, 10),
            "layers": (1, 2, 3, 4),
            "step": (6000,),
            "layer": (0, 1, 2, 3, 4),
            "algorithm_step": (0, 1, 2, 3, 4),
            "seed": 8,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks are left as they start", measure=functools.partial(measure, trained=False)),
        "shared_steps": World("the best steps are taken to be of one size", theory=beside_shared_steps),
    },
)
