"""Every public diagnostic takes what a user may give it, or says in one line what it needs."""

import functools
import traceback

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import unchecked

import icllab as icl
from icllab import algorithms, diagnostics, models, tasks
from icllab.core.errors import InputError
from icllab.diagnostics import HMC, SMC, LinearResponse
from icllab.training import Record

KEY = jax.random.key(0)
CHAINS, POPULATIONS = HMC(chains=4, warm_up=20, draws=20), SMC(particles=20, repeats=2)


def squares(w):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w)) / 2


class ScalarLoss(eqx.Module):
    """A task whose loss is the mean over positions."""

    task: tasks.LinearRegression

    def sample(self, *, key):
        return self.task.sample(key=key)

    def sample_many(self, count, *, key):
        return self.task.sample_many(count, key=key)

    def loss(self, prediction, prompt):
        return jnp.mean(self.task.loss(prediction, prompt))


class ShortLoss(ScalarLoss):
    """A task whose loss leaves out positions."""

    def loss(self, prediction, prompt):
        return self.task.loss(prediction, prompt)[1:]


@functools.cache
def task():
    return tasks.LinearRegression(2, 4, tasks.GaussianInputs(1.0), tasks.GaussianWeights(1.0), 0.1)


def network(dim=2, key=KEY):
    return models.LinearAttention.init(
        dim=dim, layers=1, std=0.3, sign=1, answers="every", causal=True, normalised=True, query_is_key=False, key=key
    )


@functools.cache
def run():
    return icl.fit(network(), task(), steps=2, key=KEY, batch=4, record=Record([0], keep=[0, 2]))


def ensemble():
    return icl.ensemble(lambda *, key: network(key=key), seeds=2, key=KEY)


def context():
    return task().sample(key=KEY)


def posterior(network, task, key):
    return diagnostics.LocalPosterior.from_network(network, task, data=16, nbeta=10.0, localization=1.0, key=key)


DIAGNOSTICS = {
    "LearningMachine": lambda m, t, key: diagnostics.LearningMachine.from_task(m, t, windows=8, key=key),
    "change_points": lambda m, t, key: diagnostics.change_points(m, key=key, resamples=100),
    "context_map": lambda m, t, key: diagnostics.context_map(
        m, t, context(), subspace=None, queries=4, tests=diagnostics.MapTests(directions=2, draws=2), key=key
    ),
    "context_rank": lambda m, t, key: diagnostics.context_rank(m, t, context(), subspace=None, queries=4, key=key),
    "LocalPosterior": lambda m, t, key: posterior(m, t, key).local_loss(),
    "head_scores": lambda m, t, key: diagnostics.head_scores(m, t, prompts=4, key=key),
    "icl_scores": lambda m, t, key: diagnostics.icl_scores(m, t, prompts=4, key=key),
    "identify": lambda m, t, key: diagnostics.identify(
        m, {"ridge": algorithms.Ridge(1.0)}, t, prompts=diagnostics.PromptSplit(10, fitting=10), key=key
    ),
    "influence": lambda m, t, key: diagnostics.influence(m, {"size": squares}),
    "patterning": lambda m, t, key: diagnostics.patterning(m, {"size": 1.0}, key=key),
    "per_length": lambda m, t, key: diagnostics.per_length(m, t, prompts=4, key=key),
    "probe_layers": lambda m, t, key: diagnostics.probe_layers(
        m, [algorithms.Ridge(1.0)], t, prompts=8, fitting=8, resamples=4, key=key
    ),
    "transitions": lambda m, t, key: diagnostics.transitions(m),
    # Not in the public face, but in the documentation.
    "hessian_spectrum": lambda m, t, key: diagnostics.hessian_spectrum(m, t, data=16, key=key),
    "effective_dimension": lambda m, t, key: diagnostics.effective_dimension(m, t, data=16, resolution=0.1, key=key),
    "fisher_spectrum": lambda m, t, key: diagnostics.fisher_spectrum(m, t, data=16, key=key),
    "accuracy": lambda m, t, key: diagnostics.accuracy(m, t, prompts=4, key=key),
    "divergences": lambda m, t, key: diagnostics.divergences(m, t, truth=algorithms.Ridge(1.0), prompts=4, key=key),
    "gradient_shares": lambda m, t, key: diagnostics.gradient_shares(m, t, prompts=8, groups=8, key=key),
    "gradient_step_comparison": lambda m, t, key: diagnostics.gradient_step_comparison(
        m, t, context(), subspace=None, queries=4, draws=2, key=key
    ),
    "logit_lens": lambda m, t, key: diagnostics.logit_lens(m, t, prompts=4, key=key),
    "patch": lambda m, t, key: diagnostics.patch(m, [[1, 2]], [[2, 1]], metric=diagnostics.logit_difference(1, 2)),
    "task_vector": lambda m, t, key: diagnostics.task_vector(m, t, layers=[0], key=key),
    "progress_measures": lambda m, t, key: diagnostics.progress_measures(m, t, prompts=4, key=key),
    "require_causal": lambda m, t, key: diagnostics.require_causal(m, t, key=key),
}
MISTAKES = {
    "an integer for a key": lambda: (network(), task(), 0),
    "a key of old": lambda: (network(), task(), jax.random.PRNGKey(0)),
    "several keys": lambda: (network(), task(), jax.random.split(KEY)),
    "no task": lambda: (network(), None, KEY),
    "the class of the task": lambda: (network(), tasks.LinearRegression, KEY),
    "no network": lambda: (None, task(), KEY),
    "the class of the network": lambda: (models.LinearAttention, task(), KEY),
    "the two exchanged": lambda: (task(), network(), KEY),
    "a list of networks": lambda: ([network(), network()], task(), KEY),
    "a name": lambda: ("ridge", task(), KEY),
    "an array": lambda: (jnp.ones(3), task(), KEY),
    "an ensemble": lambda: (ensemble(), task(), KEY),
    "a run": lambda: (run(), task(), KEY),
    "kept steps": lambda: (run().trajectory, task(), KEY),
    "another dimension": lambda: (network(3), task(), KEY),
    "a function without weights": lambda: (lambda prompt: 0 * prompt.y, task(), KEY),
    "one answer for all positions": lambda: (lambda prompt: jnp.zeros(()), task(), KEY),
    "too few answers": lambda: (lambda prompt: prompt.y[:2], task(), KEY),
    "a list of answers": lambda: (lambda prompt: [0.0] * 5, task(), KEY),
    "a scalar loss": lambda: (network(), ScalarLoss(task()), KEY),
    "a loss of fewer positions": lambda: (network(), ShortLoss(task()), KEY),
}


# Those that these diagnostics can measure, at the price of many programs: tests of their own do.
MEASURED = ("an ensemble", "a run", "kept steps", "a function without weights")
EXPENSIVE = (
    "identify",
    "probe_layers",
    "context_map",
    "context_rank",
    "gradient_step_comparison",
    "gradient_shares",
    "icl_scores",
)


def told_or_done(call):
    """The error of one line, or None where the call has a result; a traceback of another library is none of both."""
    said = None
    with unchecked():
        try:
            call()
        except InputError as error:
            said = str(error)
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            pytest.fail(f"{type(error).__name__}: {error} [{last.filename}:{last.lineno}]")
    assert said is None or ("\n" not in said and ("expected" in said or "unknown" in said)), said
    return said


# Questions that are put to a LocalPosterior, which has looked at the network, the task and the prompts.
OF_A_POSTERIOR = {
    "coefficient_at_temperature": {},
    "free_energy": {},
    "learning_coefficient": {},
    "posterior_draws": {},
    "susceptibility": {"tilted": {"a": squares}, "observables": {"b": squares}, "route": LinearResponse()},
}


def test_every_public_diagnostic_is_called():
    assert set(diagnostics.__all__) <= {*DIAGNOSTICS, *OF_A_POSTERIOR}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_no_posterior_is_told_by_every_question(mistake):
    network, task, key = MISTAKES[mistake]()
    for name, options in OF_A_POSTERIOR.items():
        said = told_or_done(
            lambda name=name, options=options: getattr(diagnostics, name)(network, task, key=key, **options)
        )
        assert "expected a LocalPosterior" in str(said), name


@pytest.mark.filterwarnings("ignore::UserWarning")  # a function without weights looks at its own target
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line_by_every_diagnostic(mistake):
    arguments = MISTAKES[mistake]()
    for name, diagnostic in DIAGNOSTICS.items():
        if mistake in MEASURED and name in EXPENSIVE:
            continue
        said = told_or_done(lambda d=diagnostic: d(*arguments))
        if mistake in ("no network", "the class of the network", "a name", "the two exchanged"):
            assert said is not None, name
        if mistake in ("an integer for a key", "several keys") and name not in ("transitions", "change_points"):
            assert said is not None, name


@pytest.mark.parametrize("kind", ["a scalar loss", "a loss of fewer positions"])
def test_a_loss_that_has_not_one_number_for_each_position_is_told(kind):
    arguments = MISTAKES[kind]()
    for name in ("per_length", "icl_scores", "gradient_shares", "LocalPosterior", "hessian_spectrum"):
        said = told_or_done(lambda name=name: DIAGNOSTICS[name](*arguments))
        assert "task.loss: expected one number for each of " in str(said), name


def test_the_coefficient_and_the_spectrum_of_a_network_are_those_of_its_task_s_loss():
    """A predictor w x of y = x/2: the Hessian is the mean square of x, and w = 1/2 is the minimum."""

    class Line(eqx.Module):
        w: jax.Array

        def __call__(self, prompt):
            return self.w[0] * prompt.x[:, 0]

    class Half(tasks.LinearRegression):
        def loss(self, prediction, prompt):
            return (prediction - prompt.x[:, 0] / 2) ** 2 / 2

    line, half = Line(jnp.array([0.5])), Half(1, 3, tasks.GaussianInputs(1.0), tasks.GaussianWeights(1.0), 0.1)
    prompts = half.sample_many(64, key=jax.random.key(1))
    curvature = float(np.mean(np.asarray(prompts.x, np.float64) ** 2))
    spectrum = diagnostics.hessian_spectrum(line, half, data=prompts, key=KEY)
    np.testing.assert_allclose(spectrum["eigenvalue"], [curvature], rtol=1e-5)
    dimension = diagnostics.effective_dimension(line, half, data=prompts, resolution=curvature, key=KEY)
    assert dimension.value == pytest.approx(0.5, rel=1e-5)
    near = diagnostics.LocalPosterior.from_network(line, half, data=prompts, nbeta=100.0, localization=1.0)
    sampler = HMC(chains=4, warm_up=100, draws=1000)
    estimate = diagnostics.coefficient_at_temperature(near, sampler=sampler, key=KEY)
    exact = 0.5 * 100 * curvature / (100 * curvature + 1)
    assert abs(float(estimate["estimate"]) - exact) < 4 * float(estimate["mcse"])
    assert float(estimate["mcse"]) < 0.05 * exact
    assert estimate.attrs["n"] == 64


LOSSES = {
    "no function": lambda: (3.0, jnp.zeros(2), None),
    "a class": lambda: (dict, jnp.zeros(2), None),
    "a list as the point": lambda: (squares, [0.0, 0.0], None),
    "integers": lambda: (squares, jnp.zeros(2, int), None),
    "no point": lambda: (squares, None, None),
    "a loss of samples without data": lambda: (lambda w, x: squares(w), jnp.zeros(2), None),
    "data of one sample less": lambda: (lambda w, s: squares(w), jnp.zeros(2), (jnp.ones(5), jnp.ones(4))),
    "a list as data": lambda: (lambda w, x: squares(w), jnp.zeros(2), [1.0, 2.0]),
    "a matrix of losses": lambda: (lambda w: jnp.outer(w, w), jnp.zeros(2), None),
    "text": lambda: (lambda w: "loss", jnp.zeros(2), None),
    "an integer loss": lambda: (lambda w: jnp.zeros((), int), jnp.zeros(2), None),
    "a loss that fails": lambda: (lambda w: w @ jnp.ones(3), jnp.zeros(2), None),
}


def near(loss, at, data=None, **fields):
    return diagnostics.LocalPosterior.from_function(loss, at, data=data, **{"nbeta": 2.0, "localization": 1.0} | fields)


# Chains, nodes, coefficients and responses evaluate the same local loss.
ROUTES = {
    "chains": lambda loss, at, data: CHAINS.sample(near(loss, at, data), key=KEY),
    "weights": lambda loss, at, data: near(loss, at, data, weights=lambda w: w).local_loss(),
    "energy": lambda loss, at, data: diagnostics.free_energy(near(loss, at, data), sampler=POPULATIONS, key=KEY),
    "hessian": lambda loss, at, data: diagnostics.hessian_spectrum(loss, at, key=KEY, data=data),
    "dimension": lambda loss, at, data: diagnostics.effective_dimension(loss, at, resolution=0.1, key=KEY, data=data),
}


@pytest.mark.parametrize("mistake", LOSSES)
def test_a_loss_that_is_none_is_told_in_one_line_by_every_route(mistake):
    loss, at, data = LOSSES[mistake]()
    for name, route in ROUTES.items():
        assert told_or_done(lambda route=route: route(loss, at, data)) is not None, name


def test_data_of_numpy_are_data():
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)

    def loss(w, x):
        return jnp.mean(jnp.sum((x - w[None]) ** 2, axis=1)) / 2

    with jax.numpy_dtype_promotion("standard"):
        for name in ("chains", "hessian"):
            assert told_or_done(lambda name=name: ROUTES[name](loss, jnp.asarray(x.mean(0)), x)) is None


def test_a_network_with_methods_of_a_task_is_a_point():
    """A generative model samples and has a loss, and is called: its parameters are a point like any other."""

    class Generative(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x

        def sample(self, *, key):
            return jax.random.normal(key)

        def loss(self, x):
            return jnp.sum(x)

    spectrum = diagnostics.hessian_spectrum(squares, Generative(jnp.ones(2)), key=KEY)
    np.testing.assert_allclose(spectrum["eigenvalue"], 1.0)
