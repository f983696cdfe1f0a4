"""dMMSE twice: the predictor on prompts, and the formula's Monte Carlo; the two share no code."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.algorithms import DiscreteMMSE, bayes_optimal
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import LinearRegression
from icllab.theory import dmmse

LAW = {"dim": 6, "alpha": 1.5, "kappa": 2.0, "rho": 0.4}


def test_the_predictor_answers_with_the_posterior_mean():
    rng = np.random.default_rng(0)
    pool, x = rng.normal(size=(30, 4)), rng.normal(size=(9, 4))
    y = x @ pool[0] + 0.5 * rng.normal(size=9)
    with jax.enable_x64(True):
        prediction = DiscreteMMSE(jnp.asarray(pool), 0.25)(RegressionPrompt(jnp.asarray(x), jnp.asarray(y)))
    answers = [x[i] @ dmmse.posterior_mean(x[:i], y[:i], pool, 0.25) for i in range(9)]
    np.testing.assert_allclose(prediction, answers, rtol=1e-11)


def test_the_last_loss_of_the_predictor_is_the_error_of_the_formula(getkey):
    """A pool, a task and a context for each loss, with test noise; against the exact error given the context."""

    def losses(key):
        of_pool, of_prompt = jax.random.split(key)
        task = LinearRegression.from_scaling(**LAW, key=of_pool)
        best = bayes_optimal(task)
        prompts = [law.sample(key=of_prompt) for law in (task.fresh(), task)]
        return jnp.stack([task.loss(best(prompt), prompt)[-1] for prompt in prompts])

    samples = np.asarray(jax.vmap(losses)(jax.random.split(getkey(), 2000)))
    means, errors = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))
    exact = dmmse.icl_error(**LAW, draws=800), dmmse.idg_error(**LAW, draws=800)
    for mean, error, (formula, of_formula) in zip(means, errors, exact, strict=True):
        assert np.hypot(error, of_formula) < 0.09
        assert abs(mean - formula) < 3 * np.hypot(error, of_formula)
