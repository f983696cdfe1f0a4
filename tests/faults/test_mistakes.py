"""Every mistake of a first hour ends in one line that says what was expected, what came and what to try."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults.mistakes import MISTAKES
from faults.processes import environment

SAID = {
    "rows differ": "x and y: expected equal numbers of rows, got '6 and 5'",
    "y of two axes": "y: expected real numbers with 1 axis, got 'float64 of shape (6, 1)'",
    "x of one axis": "x: expected real numbers with 2 axes, got 'float64 of shape (3,)'",
    "complex x": "x: expected real numbers with 2 axes, got 'complex128",
    "text for numbers": "x: expected real numbers with 2 axes, got 'str",
    "x rounded before": "table, column 'x0': expected numbers that differ in float32, got 'steps of",
    "y beyond float64": "table, column 'y': expected integers up to 2^53, got 9007199254740997",
    "asymmetric inputs": "covariance: expected a symmetric matrix, got 'entries that differ by 0.5",
    "indefinite weights": "covariance: expected eigenvalues >= 0, got -1.0",
    "negative inputs": "covariance: expected eigenvalues >= 0, got -1.0",
    "negative weights": "covariance: expected eigenvalues >= 0, got -1.0",
    "covariance of other dimensions": "covariance of inputs: expected a covariance of 3 dimensions, got 'shape (2,)'",
    "length is not whole": "alpha: 2.3 * 4 is not an integer; 9 is used instead of 9.2",
    "pool is not whole": "kappa: 0.1 * 4 is not an integer; 1 is used instead of 0.4",
    "steps are not whole": "steps: expected an integer of at least 1, got 2.5",
    "a rule for steps": "steps: expected an integer of at least 1, got 'TargetLoss'; put the largest number of ste",
    "a rule among rules is none": "rules: expected stop rules, such as TargetLoss(0.1), got 'float'",
    "descending steps": "step: expected values that ascend, got [29.0, 28.0, 27.0, 26.0]; curve.sortby('step')",
    "descending steps of breaks": "step: expected values that ascend, got [29.0, 28.0, 27.0, 26.0]",
    "a network that answers NaN": "predictor_or_run: expected finite answers, got '16 of 16 prompts without",
    "a seed for a key": "key: expected one random key of JAX, got 0; jax.random.key(0) makes one from a seed",
    "a list of predictors": "predictors: expected a predictor, a mapping of names to predictors, an Ensemble",
    "text for prompts": "prompts: expected an integer of at least 2, got '8'",
    "no prompts": "prompts: expected an integer of at least 2, got 0",
    "no block": "block: expected an integer of at least 1, got 0",
    "a model of another dimension": "predictors: expected predictors for prompts of this task, got LinearAttention",
    "a seed for the key of fit": "key: expected one random key of JAX, got 0; jax.random.key(0) makes one from a seed",
    "a batch of none": "batch: expected an integer of at least 1, or None for the whole fixed set, got 0",
    "a name that is no claim": "unknown claim 'double_descent'; did you mean 'asymptotics/double_descent'?",
    "no claim to run": "claim: expected a name such as 'asymptotics/double_descent', got None; `icl list` has all",
    "no claim to check": "claim: expected a name such as 'asymptotics/double_descent', got None; `icl list` has all",
    "a list of claims": "claim: expected a name such as 'asymptotics/double_descent', got ['asymptotics/double",
    "no claim to cite": "claim: expected a name such as 'asymptotics/double_descent', got None; `icl list` has all",
    "no results to draw": "results: expected a Dataset of icl.run, or a claim's name, got 'NoneType'",
    "no store to load": "store: expected a path, got None; the folder that was given to icl.fit",
    "a list of axes": "axes: expected a mapping of names to values, got ['tau']; such as {'tau': [0.5, 2.0]}",
    "a name for axes": "axes: expected a mapping of names to values, got 'tau'; such as {'tau': [0.5, 2.0]}",
    "an axis without a name": "unknown axis of asymptotics/double_descent 3; known: ",
    "a number for a size": "size: expected one of smoke, small, medium, full, got 3",
    "a list of sizes": "size: expected one of smoke, small, medium, full, got ['smoke']",
    "text for seeds": "seeds: expected an integer from 1 to 1000000, got 'two'",
    "a number for a folder": "out: expected a path, got 3; such as 'icl-results'",
    "no folder to check": "out: expected a path, got None; such as 'icl-results'",
    "a number for claims": "claims: expected a path, got 3; the folder with claims of your own",
    "text for workers": "workers: expected an integer of at least 1, got 'two'",
    "part of a worker": "workers: expected an integer of at least 1, got 1.5",
    "text for a limit": "limit: expected a positive number of seconds, got 'long'",
    "a number for a scheduler": "scheduler: expected the address of a dask scheduler, as text, got 8786",
    "a batch of prompts for ridge": "prompt: expected one prompt, got 'RegressionPrompt stacked to (4,)'; jax.vmap(p",
    "a batch of prompts for attention": "prompt: expected one prompt, got 'RegressionPrompt stacked to (4,)'",
    "a batch of prompts for a trace": "prompt: expected one prompt, got 'RegressionPrompt stacked to (4,)'",
    "a batch of tokens": "prompt: expected one prompt, got 'TokenPrompt stacked to (3,)'",
    "a batch of items for a network": "prompt: expected one prompt, got 'RegressionPrompt stacked to (4,)'",
    "no prompt for attention": "prompt: expected a prompt with 'positions', which LinearAttention reads, got",
    "an array for a prompt": "prompt: expected a prompt with 'y', which Recurrent reads, got 'ndarray'; task.sample(",
    "tokens for attention": "prompt: expected a prompt with 'x', which LinearAttention reads, got 'TokenPrompt'",
    "integers for inputs": "x: expected floating-point numbers, got 'int32'",
    "a column of targets": "y: expected one target for each input, of shape (3,), got (3, 1)",
    "scores of regression on tokens": "prompt: expected a prompt with 'x', which LinearAttention reads, got 'TokenPr",
    "scores of tokens on regression": "prompt: expected a prompt with 'tokens', which NGram reads, got 'RegressionPr",
    "losses of tokens on regression": "prompt: expected a prompt with 'tokens', which NGram reads, got 'RegressionPr",
    "scores of no prompts": "prompts: expected an integer of at least 2, got -5",
    "text for an early position": "early: expected a position from 0 to 4, before the late one, got '0'",
    "part of a late position": "late: expected a position from 1 to 5, the last, got 2.5",
    "text for a size of the query": "size: expected an integer from 1 to 5, so that some context",
    "too many prompts": "prompts: expected an integer of at most 2147483647, got 1000000000000",
    "text for counts": "counts: expected 6 finite numbers of at least 0, one for each length, not all 0, got 'abc'",
    "text for fitted attributes": "rivals['ridge']: expected a sequence of names, got 'ridge'",
    "a number for the task of the fits": "fit_on: expected a task, with methods sample and loss, got 'int'",
    "a diagnostic that is traced": "predictors: expected arrays with values, got 'traced ones'; call a diagnostic ou",
    "a rule for what is trained": "trainable: expected parts of the predictor, as in equinox.tree_at, got 'a functio",
    "nothing is trained": "trainable: expected parts of the predictor, as in equinox.tree_at, got 'a function that r",
    "a number is trained": "trainable: expected parts of the predictor, as in equinox.tree_at, got 'a function that ",
    "a part that is not there": "trainable: expected parts of the predictor, as in equinox.tree_at, got \"'LinearAtt",
    "an empty name of a store": "store: expected the folder of a training run, got ''; icl.fit(..., store=folder) ma",
    "a store that is not there": "store: expected the folder of a training run, got 'no-such-folder'",
    "a file for a store": "store: expected the folder of a training run, got 'a file'",
    "an empty table": "x: expected at least two rows, got 'an array of shape (0, 3)'",
    "one text for columns": "columns: expected a sequence of names, got 'abc'",
    "a number for a file": "path: expected a path, got 3",
    "text for a covariance": "covariance: expected real numbers, got 'a'",
    "text in a covariance": "covariance: expected real numbers, got [1.0, 'a', 2.0]",
    "a number for a distribution": "distribution: expected one such as GaussianWeights(1.0), got 'int'",
    "a vector for a table of unigrams": "distributions: expected a sequence of tables, arrays [context, state], got ",
    "no options of blocks": "block: expected options such as BlockOptions(",
    "answers that are no numbers": "mean loss: predictor 'mine': the loss is not finite at positions",
    "answers that are huge": "mean loss: predictor 'mine': the loss is not finite at positions 0, 1,",
    "a descent that diverges": "mean loss nan ± nan: predictor 'GradientDescent': the loss is not finite at",
    "answers in other units": "mean loss 1.61e+03 ± 5: predictor '<lambda>': the loss before the first label is",
    "one value of an axis": "axes['tau']: expected a sequence of values, got 0.5; for one value: {'tau': [0.5]}",
}
SAID_ONLY = (
    "length is not whole",
    "pool is not whole",
    "answers that are no numbers",
    "answers that are huge",
    "a descent that diverges",
    "answers in other units",
)
"""Those that go on, with a warning."""


@pytest.fixture(scope="module")
def endings():
    command = [sys.executable, str(Path(__file__).with_name("mistakes.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return json.loads(done.stdout)


def test_every_mistake_is_expected_to_say_something():
    assert set(SAID) == set(MISTAKES)


@pytest.mark.parametrize("mistake", SAID)
def test_a_mistake_is_told_in_one_line(endings, mistake):
    kind, message = endings[mistake]
    assert kind == ("warning" if mistake in SAID_ONLY else "InputError")
    assert message.startswith(SAID[mistake])
    assert "\n" not in message
