"""Mistakes of a first hour, made without the type checker of the tests; prints what each ends in."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import icllab as icl
from icllab import algorithms, diagnostics
from icllab.models import LinearAttention
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, Table

CLAIM = "asymptotics/double_descent"
KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)
RIDGE = algorithms.Ridge(0.1)
X, Y = np.arange(18.0).reshape(6, 3) ** 2, np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
FALLING = xr.DataArray(np.linspace(1, 0, 30), dims="step", coords={"step": np.arange(30)[::-1]})
ATTENTION = LinearAttention.lu(dim=3, std=0.1, answers="every", key=KEY)


def measured(predictors=RIDGE, task=TASK, key=KEY, **how):
    return diagnostics.per_length(predictors, task, key=key, **{"prompts": 4} | how)


def regression(inputs=1.0, weights=1.0):
    return LinearRegression(
        3, 5, GaussianInputs(jnp.asarray(inputs)), GaussianWeights(jnp.asarray(weights)), jnp.asarray(0.1)
    )


def trained(**how):
    return icl.fit(ATTENTION, TASK, **{"steps": 5, "key": KEY, "batch": 4} | how)


MISTAKES = {
    "rows differ": lambda: Table(X, Y[:5], length=3),
    "y of two axes": lambda: Table(X, Y[:, None], length=3),
    "x of one axis": lambda: Table(X[0], Y, length=3),
    "complex x": lambda: Table(X + 1j, Y, length=3),
    "text for numbers": lambda: Table(X.astype(str), Y, length=3),
    "x rounded before": lambda: Table(np.float32(X + 1.7e9), Y, length=3),
    "y beyond float64": lambda: Table(X, 2**53 + np.arange(6), length=3),
    "asymmetric inputs": lambda: regression(inputs=[[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "indefinite weights": lambda: regression(weights=[[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "negative inputs": lambda: regression(inputs=-1.0),
    "negative weights": lambda: regression(weights=[1.0, -1.0, 1.0]),
    "covariance of other dimensions": lambda: regression(inputs=[1.0, 2.0]),
    "length is not whole": lambda: LinearRegression.from_scaling(dim=4, alpha=2.3, kappa=1.0, rho=0.1, key=KEY),
    "pool is not whole": lambda: LinearRegression.from_scaling(dim=4, alpha=2.0, kappa=0.1, rho=0.1, key=KEY),
    "steps are not whole": lambda: trained(steps=2.5),
    "a rule for steps": lambda: trained(steps=icl.training.TargetLoss(0.1)),
    "a rule among rules is none": lambda: icl.training.Until(5, 0.1),
    "descending steps": lambda: diagnostics.transitions(FALLING),
    "descending steps of breaks": lambda: diagnostics.change_points(FALLING),
    "a network that answers NaN": lambda: diagnostics.identify(
        jax.tree.map(lambda leaf: leaf * np.nan, ATTENTION), {"ridge": RIDGE}, TASK, key=KEY, prompts=16, fitting=16
    ),
    "a seed for a key": lambda: measured(key=0),
    "a list of predictors": lambda: measured([RIDGE]),
    "text for prompts": lambda: measured(prompts="8"),
    "no prompts": lambda: measured(prompts=0),
    "no block": lambda: measured(block=0),
    "a model of another dimension": lambda: measured(LinearAttention.lu(dim=4, std=0.1, answers="every", key=KEY)),
    "a seed for the key of fit": lambda: trained(key=0),
    "a batch of none": lambda: trained(batch=0),
    "a name that is no claim": lambda: icl.draw("double_descent"),
    "no claim to run": lambda: icl.run(None),
    "no claim to check": lambda: icl.check(None),
    "a list of claims": lambda: icl.run([CLAIM]),
    "no claim to cite": lambda: icl.cite(None),
    "no results to draw": lambda: icl.draw(None),
    "no store to load": lambda: icl.load(None),
    "a list of axes": lambda: icl.run(CLAIM, axes=["tau"]),
    "a name for axes": lambda: icl.run(CLAIM, axes="tau"),
    "an axis without a name": lambda: icl.run(CLAIM, "smoke", axes={3: [1]}),
    "a number for a size": lambda: icl.run(CLAIM, size=3),
    "a list of sizes": lambda: icl.run(CLAIM, size=["smoke"]),
    "text for seeds": lambda: icl.run(CLAIM, "smoke", seeds="two"),
    "a number for a folder": lambda: icl.run(CLAIM, "smoke", out=3),
    "no folder to check": lambda: icl.check(CLAIM, out=None),
    "a number for claims": lambda: icl.run(CLAIM, "smoke", claims=3),
    "text for workers": lambda: icl.run(CLAIM, "smoke", workers="two"),
    "part of a worker": lambda: icl.run(CLAIM, "smoke", workers=1.5),
    "text for a limit": lambda: icl.run(CLAIM, "smoke", limit="long"),
    "a number for a scheduler": lambda: icl.run(CLAIM, "smoke", scheduler=8786),
    "one value of an axis": lambda: icl.run("asymptotics/double_descent", "smoke", axes={"tau": 0.5}),
}


def ending(make):
    """The kind of the error and its message; that of a warning where there is no error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            make()
        except Exception as error:
            return type(error).__name__, str(error)
    return ("warning", str(caught[0].message)) if caught else ("silence", "")


if __name__ == "__main__":
    print(json.dumps({name: ending(make) for name, make in MISTAKES.items()}))
