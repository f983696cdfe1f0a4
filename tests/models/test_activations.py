"""A network of JAX that was written by hand: heads by the names that its user gives, and coefficients as for others."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from icllab import diagnostics
from icllab.core.errors import InputError, ResultWarning
from icllab.models import BlockOptions, Interleaved, Transformer, WithActivations, ablated, edited
from icllab.tasks import LinearRegression

TASK, KEY = LinearRegression.convention("raventos", dim=2, length=4), jax.random.key(0)
PROMPT = TASK.sample(key=KEY)
INNER = Transformer(
    Interleaved(),
    dim=2,
    width=6,
    layers=2,
    block=BlockOptions(heads=2, mlp=None, norm="pre"),
    positions="none",
    key=jax.random.key(1),
)


class Strange(eqx.Module):
    """A network with leaves that no array of weights is: integers, names, None, a table of places."""

    inner: Transformer
    table: jax.Array
    nothing: None
    calls: int
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, prompt):
        return self.inner(prompt)


NETWORK = Strange(INNER, jnp.arange(3), None, 7, ("a",))


def named(network, prompt):
    activations = network.inner.trace(prompt).activations
    return {name: value for name, value in activations.items() if name.endswith((".pattern", ".heads"))}


def editable(network, prompt, edit):
    trace = network.inner.trace(prompt, edit)
    return trace.activations | {"prediction": trace.prediction}


def test_scores_and_effects_are_those_of_the_network():
    model = WithActivations(NETWORK, named, Interleaved())
    np.testing.assert_array_equal(model(PROMPT), INNER(PROMPT))
    ours, theirs = (diagnostics.head_scores(m, TASK, key=KEY, prompts=8) for m in (INNER, model))
    np.testing.assert_array_equal(ours.previous_token_score, theirs.previous_token_score)
    assert theirs.attrs["warnings"] == ours.attrs["warnings"]
    model = WithActivations(NETWORK, editable, Interleaved())
    ours, theirs = (diagnostics.head_effects(m, TASK, key=KEY, prompts=4, heads=[(1, 1)]) for m in (INNER, model))
    for name in ours.data_vars:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        ablated(model, heads=[(0, 1)])(PROMPT), ablated(INNER, heads=[(0, 1)])(PROMPT), rtol=1e-6
    )


def test_refusals_name_the_way():
    with pytest.raises(InputError, match=r"models\.WithActivations"):
        diagnostics.head_scores(NETWORK, TASK, key=KEY, prompts=4)
    model = WithActivations(NETWORK, named)
    with pytest.raises(InputError, match=r"\(network, prompt, edit\)"):
        ablated(model, heads=[(0, 1)])(PROMPT)
    with pytest.raises(InputError, match="counted from 0"):
        ablated(WithActivations(NETWORK, editable), heads=[(0, 2)])(PROMPT)
    with pytest.raises(InputError, match="'prediction' among the arrays"):
        edited(WithActivations(NETWORK, lambda n, p, edit: {"a": edit("a", p.y)}), lambda _, value: 2 * value)(PROMPT)
    with pytest.raises(InputError, match="arrays by name"):
        WithActivations(NETWORK, lambda network, prompt: prompt.y).trace(PROMPT)
    assert_refused(lambda: WithActivations(Strange, named), "network: expected a function of a prompt")
    assert_refused(lambda: WithActivations(NETWORK, None), "activations: expected a function of a network")
    assert_refused(lambda: WithActivations(NETWORK, named, "interleaved"), "arrangement: expected one such as")


def test_coefficient_and_spectrum_of_a_network_with_odd_leaves():
    estimates, traces = {}, {}
    for name, network in {"ours": INNER, "strange": NETWORK, "named": WithActivations(NETWORK, named)}.items():
        posterior = diagnostics.LocalPosterior.from_network(
            network, TASK, key=KEY, data=32, nbeta=10.0, localization=10.0
        )
        sampler = diagnostics.SGLD(chains=4, warm_up=20, draws=40, batch=16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResultWarning)  # a short run
            estimate = diagnostics.coefficient_at_temperature(posterior, key=KEY, sampler=sampler, checks=())
        estimates[name] = float(estimate.estimate)
        solver = diagnostics.SpectrumSolver(probes=2, order=8)
        traces[name] = float(diagnostics.hessian_spectrum(network, TASK, key=KEY, data=32, solver=solver).trace)
    assert estimates["strange"] == estimates["named"] == pytest.approx(estimates["ours"], rel=1e-4)
    assert traces["strange"] == traces["named"] == pytest.approx(traces["ours"], rel=1e-4)
