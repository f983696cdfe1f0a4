"""Mistakes of a first hour, made without the type checker of the tests; prints what each ends in."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import icllab as icl
from icllab import algorithms, diagnostics
from icllab.algorithms import NGram
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention, Recurrent, Transformer
from icllab.models.networks.embedding import Interleaved
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, RepeatedTokens, Table, WeightPool

CLAIM = "asymptotics/double_descent"
KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)
RIDGE = algorithms.Ridge(0.1)
X, Y = np.arange(18.0).reshape(6, 3) ** 2, np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
FALLING = xr.DataArray(np.linspace(1, 0, 30), dims="step", coords={"step": np.arange(30)[::-1]})
ATTENTION = LinearAttention.lu(dim=3, std=0.1, answers="every", key=KEY)
GRU = Recurrent(dim=3, width=4, key=KEY)
TOKENS, NGRAM = RepeatedTokens(vocabulary=8, period=4, repeats=2), NGram.from_laws([np.full((1, 8), 1 / 8)])


def measured(predictors=RIDGE, task=TASK, key=KEY, **how):
    return diagnostics.per_length(predictors, task, key=key, **{"prompts": 4} | how)


def scored(predictors=RIDGE, task=TASK, key=KEY, **how):
    return diagnostics.icl_scores(predictors, task, key=key, **{"prompts": 4} | how)


def identified(network=RIDGE, rivals=None):
    split = diagnostics.PromptSplit(16, fitting=16)
    return diagnostics.identify(network, rivals or {"ridge": RIDGE}, TASK, key=KEY, prompts=split)


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
    "a network that answers NaN": lambda: identified(jax.tree.map(lambda leaf: leaf * np.nan, ATTENTION)),
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
    "a batch of prompts for ridge": lambda: RIDGE(TASK.sample_many(4, key=KEY)),
    "a batch of prompts for attention": lambda: ATTENTION(TASK.sample_many(4, key=KEY)),
    "a batch of prompts for a trace": lambda: ATTENTION.trace(TASK.sample_many(4, key=KEY)),
    "a batch of tokens": lambda: NGRAM(TOKENS.sample_many(3, key=KEY)),
    "a batch of items for a network": lambda: GRU(TASK.sample_many(4, key=KEY)),
    "no prompt for attention": lambda: ATTENTION(None),
    "an array for a prompt": lambda: GRU(X),
    "tokens for attention": lambda: ATTENTION(TOKENS.sample(key=KEY)),
    "integers for inputs": lambda: RegressionPrompt(jnp.ones((3, 2), int), jnp.ones(3)),
    "a column of targets": lambda: RegressionPrompt(jnp.ones((3, 2)), jnp.ones((3, 1))),
    "scores of regression on tokens": lambda: scored(ATTENTION, TOKENS),
    "scores of tokens on regression": lambda: scored(NGRAM),
    "losses of tokens on regression": lambda: measured(NGRAM),
    "scores of no prompts": lambda: scored(prompts=-5),
    "text for an early position": lambda: scored(early="0"),
    "part of a late position": lambda: scored(late=2.5),
    "text for a size of the query": lambda: scored(size="1"),
    "too many prompts": lambda: measured(prompts=10**12),
    "text for counts": lambda: measured(counts="abc"),
    "text for fitted attributes": lambda: identified(rivals={"ridge": diagnostics.Fitted(RIDGE, "ridge")}),
    "a number for the task of the fits": lambda: diagnostics.PromptSplit(fit_on=3),
    "a diagnostic that is traced": lambda: jax.jit(lambda key: measured(key=key).loss.values)(KEY),
    "a rule for what is trained": lambda: trained(trainable=lambda model: False),
    "nothing is trained": lambda: trained(trainable=lambda model: None),
    "a number is trained": lambda: trained(trainable=lambda model: 3),
    "a part that is not there": lambda: trained(trainable=lambda model: model.gamma0),
    "an empty name of a store": lambda: icl.load(""),
    "a store that is not there": lambda: icl.load("no-such-folder"),
    "a file for a store": lambda: icl.load(__file__),
    "an empty table": lambda: Table(np.zeros((0, 3)), np.zeros(0), length=3),
    "one text for columns": lambda: Table(X, Y, length=3, columns="abc"),
    "a number for a file": lambda: Table.from_csv(3, target="y", length=3),
    "text for a covariance": lambda: GaussianInputs("a"),
    "text in a covariance": lambda: GaussianInputs([1.0, "a", 2.0]),
    "a number for a distribution": lambda: WeightPool.init(3, 4, 3, key=KEY),
    "a vector for a table of unigrams": lambda: NGram.from_laws([np.full(8, 1 / 8)]),
    "no options of blocks": lambda: Transformer(
        Interleaved(), dim=3, width=8, layers=1, block=None, positions="none", key=KEY
    ),
    "answers that are no numbers": lambda: measured({"mine": lambda prompt: prompt.y * jnp.nan}),
    "answers that are huge": lambda: measured({"mine": lambda prompt: 1e30 + 0 * prompt.y}),
    "a descent that diverges": lambda: measured(
        algorithms.GradientDescent(9.0, layers=30, dim=3, normalised=True, half=True)
    ),
    "answers in other units": lambda: measured(lambda prompt: RIDGE(prompt) + 40, prompts=64),
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
