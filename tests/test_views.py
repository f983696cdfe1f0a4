"""Results show themselves: in a terminal in one short line, in a notebook as a table with the numbers that matter."""

import importlib
import inspect
import pkgutil
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import icllab
from icllab import constructions, diagnostics, lab, models, theory, training
from icllab.core.protocols import AbstractPredictor, AbstractTask, Trace
from icllab.core.views import brief, one_line
from icllab.diagnostics import ContextMap, ContextRank
from icllab.diagnostics.circuits.patching import LogitDifference, logit_difference
from icllab.diagnostics.curvature.krylov import TraceEstimate
from icllab.diagnostics.sampling.samplers import Draws
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.examination.examining import Examination
from icllab.examination.results import Answered
from icllab.lab import Estimate, Finding, Outcome, Verdict
from icllab.models import LinearAttention, edited, edited_by, reduced
from icllab.models.contexts.patches import Patch
from icllab.models.reduced import Samples
from icllab.models.reduced.fitting import SolveReport
from icllab.tasks import LinearRegression
from icllab.theory.preconditioners import Optimum, optimal
from icllab.training import Ensemble, Run, Trajectory

KEY = jax.random.key(3)
FINDING = Finding("gap[rate<0.1]", "gap < bound & more", 0.25, 0.125, 0.0625, 0.5, Outcome.HOLDS, "more <seeds>")
COORDINATES = {"seed": np.array([3, 5]), "rate": np.array([0.25, 0.5])}
SUBPACKAGES = (icllab, diagnostics, training, lab, models, reduced, constructions)


def attention():
    return LinearAttention.lu(dim=2, std=0.1, answers="every", key=KEY)


def trace():
    return Trace(jnp.array([0.5, 1.5]), {"layer<0>": jnp.array([[-2.5, 1.0, 0.0], [7.25, 1.0, 0.0]])})


def report():
    return SolveReport("cholesky", "of <least> cost", "float32", *map(jnp.asarray, (7, 0.0625, 0.125, True)))


def solved():
    task = LinearRegression.convention("raventos", dim=2, length=3)
    return reduced.ReducedLinearAttention(jnp.arange(6.0).reshape(2, 3) + 0.5, task, report())


def run(members=None):
    losses = np.array([[[4.0]], [[8.0]]])
    dataset = xr.Dataset(
        {
            "training_loss": (("member", "step", "position"), losses),
            "status": ("member", ["ok", "stopped"]),
            "ended": ("member", [11, 9]),
        }
    )
    members = members or Ensemble(attention(), COORDINATES)
    return Run(members, dataset, {"seconds": 1.5}, Trajectory((), {}, None, COORDINATES))


def draws():
    posterior = diagnostics.LocalPosterior.from_function(
        lambda w: jnp.sum(w["a"] ** 2), {"a": jnp.zeros(2)}, nbeta=10.0, localization=0.5
    )
    return diagnostics.posterior_draws(
        posterior,
        sampler=SGLD(chains=4, warm_up=8, draws=9, step_size=0.01),
        key=jax.random.key(0),
    )


def context_map():
    names = ("gap", "derivative", "composition", "norm")
    from icllab.diagnostics.contexts.maps import NULLS

    nulls = list(NULLS)
    table = {f"null_{name}": (("null", "draw"), np.full((len(nulls), 2), 0.75)) for name in names}
    about = {"query_length": 1, "queries": 6, "positions": "last", "method": "newton"}
    dataset = xr.Dataset(table | dict.fromkeys(names, 0.25), {"null": nulls}, about)
    return ContextMap(None, dataset, ("few & far",))


def examination():
    header = {"name": "<net>", "size": "small", "prompts": 512, "key": [0, 0], "weights": "12", "task": "<net>"}
    return Examination(header, (Answered("in_context", "not asked", "no"),))


SHOWN = {
    Ensemble: (lambda: Ensemble(attention(), COORDINATES), ["LinearAttention", "<td>2</td>", "[3, 5]", "[0.25, 0.5]"]),
    Trajectory: (lambda: Trajectory((0, 40), {}, None, COORDINATES), ["<td>2</td>", "[0, 40]", "[3, 5]"]),
    Run: (run, ["1 ok, 1 stopped", "<td>11</td>", "4 to 8", "1.5"]),
    Finding: (lambda: FINDING, ["gap[rate&lt;0.1]", "bound &amp; more", "0.25", "0.125", "0.062", "0.5", "holds"]),
    Verdict: (lambda: Verdict("subject/<finding>", (FINDING,)), ["&lt;finding&gt;", "0.25", "0.125", "0.062", "holds"]),
    Estimate: (lambda: Estimate(np.array([0.125, 2.0]), 0.0625), ["[0.125, 2]", "[0.0625, 0.0625]", "False"]),
    Trace: (trace, ["[0.5, 1.5]", "layer&lt;0&gt;", "[2, 3] from -2.5 to 7.25"]),
    models.Edited: (lambda: edited(attention(), lambda name, value: value), ["LinearAttention", "&lt;lambda&gt;"]),
    models.EditedBy: (lambda: edited_by(attention(), trace), ["LinearAttention", "trace"]),
    reduced.ReducedLinearAttention: (
        solved,
        ["[2, 3] from 0.5 to 5.5", "cholesky", "<td>7</td>", "0.0625", "0.125", "True", "of &lt;least&gt; cost"],
    ),
    SolveReport: (report, ["cholesky", "of &lt;least&gt; cost", "<td>7</td>", "0.0625", "0.125", "True"]),
    Samples: (
        lambda: Samples(jnp.ones((1, 4, 2)), jnp.full((1, 4, 6), 2.5), jnp.zeros((1, 4)), jnp.asarray(3)),
        ["[1, 4, 2] from 1 to 1", "[1, 4, 6] from 2.5 to 2.5", "<td>3</td>"],
    ),
    Draws: (draws, ["SGLD", "<td>4</td>", "<td>9</td>", "<td>10</td>", "0.5", "parameters"]),
    Patch: (lambda: Patch((), (jnp.array([0.5, 1.5]),)), ["[[0.5, 1.5]]"]),
    Optimum: (lambda: optimal(np.ones(8), length=4), ["[8, 8] from 0 to 0.3077", "5.538"]),
    TraceEstimate: (lambda: TraceEstimate(12.5, 0.25, 0.125), ["12.5", "0.25", "0.125"]),
    LogitDifference: (lambda: logit_difference(" <Paris>", " Rome"), ["&lt;Paris&gt;", "Rome"]),
    Examination: (examination, ["In context", "&lt;net&gt;", "Task."]),
    ContextMap: (context_map, ["0.25", "0.75", "few &amp; far", "newton"]),
    ContextRank: (
        lambda: ContextRank(None, 3, 2.5, 7, np.ones(3), np.ones((3, 9)), True, 2**20),
        ["<td>3</td>", "2.5", "<td>4</td>", "True", "1 MiB"],
    ),
}
"""Class -> how a small one is made, and what its table must hold."""


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: one.__name__)
def test_a_result_is_one_short_line_and_a_table_of_its_numbers(shown):
    make, held = SHOWN[shown]
    result = make()
    assert type(result) is shown
    assert repr(result).startswith(shown.__name__ + "(")
    assert len(repr(result)) <= 200
    assert "\n" not in repr(result)
    table = result._repr_html_()
    assert not [text for text in held if text not in table]
    # What is no tag of the table is escaped.
    assert set(re.findall(r"</?(\w+)", table)) <= {
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ol",
        "ul",
        "li",
        "p",
        "h2",
    }


def classes_in(hint):
    if inspect.isclass(hint) and not typing.get_args(hint):
        return {hint}
    return {found for part in typing.get_args(hint) for found in classes_in(part)}


def returned(function):
    try:
        hint = typing.get_type_hints(inspect.unwrap(function)).get("return")
    except NameError:  # of a name that only a type checker imports
        return set()
    return {one for one in classes_in(hint) if one.__module__.startswith("icllab.")}


def importable(module):
    """What a subpackage can be asked for: its public names, and those for specialists that ``__all__`` leaves out."""
    names = re.findall(r"^    from \S+ import (\([^)]*\)|.+)$", inspect.getsource(module), re.MULTILINE)
    return [getattr(module, name) for name in {*module.__all__, *re.findall(r"\w+", " ".join(names))}]


def test_every_result_of_a_public_function_has_a_view():
    functions = [one for module in SUBPACKAGES for one in importable(module) if inspect.isfunction(inspect.unwrap(one))]
    functions += [
        one
        for module in (
            importlib.import_module(f"icllab.theory.{entry.name}") for entry in pkgutil.iter_modules(theory.__path__)
        )
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    ]
    functions += [lab.estimates.mean, lab.checks.above, icllab.lab.judging.judge]
    results = set().union(*map(returned, functions)) | {Trajectory, Trace}
    assert {Ensemble, Run, Verdict, Estimate, Finding, ContextMap, TraceEstimate, Optimum, models.Edited} <= results
    made = {one for one in results if issubclass(one, AbstractPredictor | AbstractTask)}  # theirs is their structure
    results -= {one for one in made if one.__module__ not in {"icllab.models.reduced.fitting", edited.__module__}}
    assert not [one for one in results if not hasattr(one, "_repr_html_")]
    undrawn = {one for one in results if not one.__module__.startswith(("icllab.theory", "icllab.constructions"))}
    assert undrawn <= set(SHOWN)


def test_a_long_line_is_cut():
    line = one_line("Name", {"field": "word\n" * 90})
    assert len(line) == 200
    assert line.startswith("Name(field: word word")
    assert line.endswith("...)")


def test_what_is_traced_is_shown_by_its_shape():
    seen = []
    jax.jit(lambda value: seen.append(brief(value)))(jnp.ones((3, 2)))
    assert seen == ["[3, 2]"]
    assert brief(np.array([np.nan, np.inf, 1.0, 2.0, 4.0])) == "[5] from 1 to 4"
    assert brief(jax.random.key(0)) == "[]"
    assert brief(None) == "none"
