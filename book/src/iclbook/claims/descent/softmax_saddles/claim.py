r"""Softmax attention of low rank keeps order and levels of linear attention's plateaus, and cuts later ones short.

The weights of a softmax sum to one. To first order in its scores a head answers

.. math:: v_h\,\bar y + v_h\,\frac1n\sum_i y_i\,(s^{(h)}_i - \bar s^{(h)}),

linear attention and the mean of labels, which says nothing about the query. So a head that learns adds an error, which
the other heads cancel: :math:`\sum_h v_h` goes to zero at the rate :math:`2\,\mathrm{tr}\,\Lambda/n`. Their values are
finite then, and keys and queries of the next component grow exponentially, from the start that they had: a rest goes
with the logarithm of the start, where that of linear attention goes with its inverse. The first rest would keep the
inverse but for the prompts, which are fixed: there the mean of labels goes with the target by chance, and draws values
to a size of its own. What a component has in the answer is its regression on its term in linear attention.
"""

import numpy as np
import xarray as xr

from iclbook.claims.descent._plateaus import SETTINGS
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.theory import saddles

SETTING, DIM = "authors", 4
LEVEL = 0.15  # of a plateau's loss
REMAINDER = 0.25  # of the largest value: what is left of the sum of values
LATER = 2.0  # time from the first drop to the third, with a quarter of the start over that with the whole


def theory(dataset: xr.Dataset, *, ascending: bool = False) -> xr.Dataset:
    """Add linear attention's plateaus. ``ascending``: the smallest component comes first."""
    spectrum, length, noise = SETTINGS[SETTING]
    values = np.array(spectrum)
    gains = values**2 * saddles.component_weights(values, length=length, noise_variance=noise)
    levels = values.sum() - np.append(0, np.cumsum(gains[::-1] if ascending else gains))
    closed = xr.DataArray(levels, dims="plateau", coords={"plateau": np.arange(DIM + 1)})
    learned = dataset["learned_step"].transpose(..., "component").values
    known = np.where(np.isfinite(learned), learned, np.inf)
    with np.errstate(invalid="ignore"):
        disordered = (np.diff(known[..., ::-1] if ascending else known, axis=-1) < 0).any(axis=-1)
    axes = tuple(dim for dim in dataset["learned_step"].dims if dim != "component")
    return dataset.assign(plateau_loss_theory=closed.sel(plateau=dataset.plateau), disordered=(axes, disordered))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Order and levels from the smaller start, values that cancel, and times that the start does not decide."""
    large, small = (dataset.sel(start_std=end(dataset["start_std"].values), drop=True) for end in (max, min))
    findings = checks.equal("order", "networks that learn out of order", int(small["disordered"].sum()), 0)
    inner = slice(1, DIM - 1)
    ratio = (small["plateau_loss"] / small["plateau_loss_theory"]).sel(plateau=inner)
    findings += checks.near(
        "levels", "loss / closed form of linear attention", estimates.mean(ratio), 1.0, margin=LEVEL
    )
    left = small["value_sum"].sel(plateau=inner)
    findings += checks.below("cancelled", "sum of values / largest", estimates.mean(left), REMAINDER)
    if dataset.sizes["start_std"] < 2:
        return findings
    times = [np.sort(part["learned_step"].transpose("seed", "component").values)[:, :3] for part in (small, large)]
    findings += checks.complete("learned", "three components are learned", bool(np.isfinite(times).all()))
    later = [small["seed"].copy(data=part[:, 2] - part[:, 0]) for part in times]
    quantity = "steps from the first drop to the third, from the smaller start / from the larger"
    return findings + checks.below("later", quantity, estimates.geometric_mean(later[0] / later[1]), LATER)


def figure(dataset: xr.Dataset):
    """Draw losses of plateaus on linear attention's, steps of the drops by start, and curves from the smaller start."""
    rows = [
        Panel("plateau_loss", "plateau_loss_theory", "log", x="plateau", hue="start_std"),
        Panel("learned_step", yscale="log", x="component", hue="start_std"),
        Panel(None, "loss_curve", "log", at={"start_std": float(dataset["start_std"].min())}, x="step", hue="seed"),
    ]
    return panels(dataset, rows, x="step", line_name="linear attention", columns=3)


ROWS = {"component": tuple(range(DIM)), "plateau": tuple(range(DIM + 1))}

claim = Claim(
    title="Softmax cuts later plateaus short",
    sentence=(
        "Rank-one softmax heads learn principal components in order, near linear attention's levels; but they cancel "
        "the mean of labels, so that later rests hardly lengthen with a smaller start."
    ),
    conditions=(
        "d = 4, 31 examples, eigenvalues 0.4 to 0.1, six heads, gradient descent at rate 0.7 on 4000 fixed prompts "
        "from N(0, 0.01²), and from a quarter of the same start. Levels within 15 %, up to three components. From the "
        "smaller start the time from the first drop to the third is less than twice as long. This time was chosen on "
        "other keys, where unpaired starts, the time to the last drop and fewer prompts were undecided."
    ),
    sources=("Zhang25",),
    axes=(
        Axis("start_std", r"\sigma", "standard deviation of the start", above=0),
        Axis("component", "d", "principal component, 0 the largest", least=0),
        Axis("plateau", "m", "components learned", least=0),
    ),
    quantities=(
        Quantity("loss_curve", "L", "error on fresh prompts"),
        Quantity("learned_step", "t_d", "step at which a component is learned", "updates"),
        Quantity("plateau_loss", "L_m", "error on a plateau"),
        Quantity("value_sum", r"|\sum_h v_h| / \max|v_h|", "sum of values over the largest"),
        Quantity("disordered", "!", "whether components come out of order"),
    ),
    static=(),
    outputs=("step", *ROWS),
    fixed={"heads": 6, "rate": 0.7, "prompts": 4000, "judged": 4000},
    sizes={
        "smoke": {"start_std": (0.02,), "step": tuple(range(0, 301, 20)), "seed": 2, "prompts": 200, "judged": 200}
        | ROWS,
        "small": {"start_std": (0.01, 0.0025), "step": tuple(range(0, 4201, 30)), "seed": 8} | ROWS,
        "medium": {
            "start_std": (0.02, 0.01, 0.005, 0.0025),
            "step": tuple(range(0, 4201, 30)),
            "seed": Seeds(8, block=1),
        }
        | ROWS,
    },
    key=11,
    controls={
        "linear": Control(
            "attention is linear",
            measure={"softmax": False},
            axes={"start_std": (0.02, 0.005), "step": tuple(range(0, 8001, 40))},
        ),
        "smallest_first": Control("the smallest component is taken to come first", theory={"ascending": True}),
    },
)
