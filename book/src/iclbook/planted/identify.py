"""Which of two algorithms a network implements, if either."""

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.algorithms import GradientDescent, Ridge
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.identification.candidates import Fitted
from icllab.diagnostics.identification.comparison import PromptSplit, identify
from icllab.diagnostics.identification.verdicts import MANY, NONE, UNDECIDED
from icllab.tasks import LinearRegression

STATISTIC = "icllab.diagnostics.identification.comparison.identify"
CLAIMS = (
    "descent/components_one_by_one",
    "descent/which_algorithm",
)
FAMILY = (
    "Answers (1 - s) ridge + s gradient descent, one step of rate one half, to 8 examples in 4 dimensions; 512 "
    "prompts, and 256 to fit the rate. At s = 0.128 ridge leaves 1.0 % of the variance unexplained, which is "
    "the tolerance."
)
AXIS = "weight of gradient descent, s"
EDGE = 0.128
STRENGTHS = (0.0, 0.06, EDGE, 0.25, 0.5, 0.75, 1.0)
RIDGE, DESCENT = "ridge", "gradient descent"
FALSE = {
    0.0: (DESCENT, MANY, NONE, UNDECIDED),
    EDGE: (RIDGE, DESCENT, MANY),
    0.5: (RIDGE, DESCENT, MANY, UNDECIDED),
    1.0: (RIDGE, MANY, NONE, UNDECIDED),
}
REPLICATES = 100

TASK = LinearRegression.convention("raventos", dim=4, length=8)
RATE = 0.5


class Mixture(AbstractPredictor):
    """A weighted mean of the answers of two predictors."""

    weight: jax.Array
    first: eqx.Module
    second: eqx.Module

    def __call__(self, prompt):
        """The weighted mean of the two answers."""
        return (1 - self.weight) * self.first(prompt) + self.weight * self.second(prompt)  # pyright: ignore[reportCallIssue]


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate; the candidate's rate starts at a third of the right one."""
    ridge = Ridge(float(TASK.noise_variance))
    descent, start = (GradientDescent(r, layers=1, dim=4, normalised=True, half=False) for r in (RATE, RATE / 3))
    network, candidates = (
        Mixture(jnp.asarray(strength), ridge, descent),
        {RIDGE: ridge, DESCENT: Fitted(start, ["rate"])},
    )
    options = {"prompts": PromptSplit(512, fitting=256), "progress": False}
    tables = (identify(network, candidates, TASK, key=k, **options) for k in jax.random.split(key, replicates))
    return [str(table["verdict"].values) for table in tables]
