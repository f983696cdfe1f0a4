"""``icl theory``: what can be asked, on which grids, and what has no answer."""

import importlib
import inspect
import math
import re

import pytest
from faults.processes import strictly

from icllab.cli import formulas
from icllab.core.errors import InputError


def test_theory_lists_formulas_and_only_those(icl):
    assert set(formulas.listing()) >= {
        "wishart.stieltjes",
        "linear_attention.icl_error",
        "linear_attention.ridge_error",
    }
    assert not [name for name in formulas.listing() if name.startswith("parameters.") or "._" in name]
    status, out, _ = icl("theory")
    assert status == 0
    assert "linear_attention.icl_error tau= alpha= kappa= rho= [ridge=0.0]" in out


def test_theory_on_a_grid(icl):
    from icllab.theory import linear_attention

    words = ["theory", "linear_attention.icl_error", "tau=0.5:1.5:3", "alpha=2,4", "rho=0.25", "kappa=1.5"]
    answer = strictly(icl(*words, "--json")[1])
    assert answer["axes"] == ["tau", "alpha"]
    assert answer["parameters"] == {"tau": [0.5, 1.0, 1.5], "alpha": [2.0, 4.0], "rho": 0.25, "kappa": 1.5}
    for i, tau in enumerate([0.5, 1.0, 1.5]):
        for j, alpha in enumerate([2.0, 4.0]):
            value = linear_attention.icl_error(tau=tau, alpha=alpha, kappa=1.5, rho=0.25)
            assert float(answer["values"]["icl_error"][i][j]) == value
    _, out, _ = icl(*words)
    assert out.splitlines()[-6].split() == ["0.5", "2", "1.62653"]
    assert out.count(" inf") == 2


def test_formulas_of_counts_are_asked_point_by_point(icl):
    from icllab.theory import learning_coefficients

    words = [
        "theory",
        "learning_coefficients.reduced_rank_regression",
        "inputs=3",
        "hidden=2,3",
        "outputs=3,4",
        "rank=1",
    ]
    answer = strictly(icl(*words, "--json")[1])
    assert answer["axes"] == ["hidden", "outputs"]
    for i, hidden in enumerate((2, 3)):
        for j, outputs in enumerate((3, 4)):
            found = learning_coefficients.reduced_rank_regression(3, hidden, outputs, 1)
            assert tuple(answer["values"][name][i][j] for name in ("value", "multiplicity")) == found
    words = ["theory", "learning_coefficients.normal_crossing", "powers=1,2", "--json"]
    assert strictly(icl(*words)[1])["values"] == {"value": 0.25, "multiplicity": 1}
    words = ["theory", "quadratic_posterior.gaussian_coefficient", "eigenvalues=1,2,0", "nbeta=1,10", "--json"]
    assert strictly(icl(*words)[1])["values"] == {"gaussian_coefficient": [1.0, 1.0]}
    status, _, err = icl("theory", "learning_coefficients.tanh_network", "hidden=1.5")
    assert status == 2
    assert "hidden: expected a whole number, got 1.5" in err


def test_a_spectrum_is_one_value_and_is_not_swept(icl):
    from icllab.theory import task_alignment

    law = ["alpha=2", "kappa=1.5", "rho=0.1"]
    words = ["theory", "task_alignment.icl_error", "train=3,1,0.5,0.5,0", "test=1", "tau=0.5,2", *law]
    answer = strictly(icl(*words, "--json")[1])
    assert answer["axes"] == ["tau"]
    assert answer["parameters"]["train"] == [3.0, 1.0, 0.5, 0.5, 0.0]
    for tau, value in zip((0.5, 2.0), answer["values"]["icl_error"], strict=True):
        assert float(value) == task_alignment.icl_error([3, 1, 0.5, 0.5, 0], 1, tau=tau, alpha=2, kappa=1.5, rho=0.1)
    assert "at train = [3, 1, 0.5, ..., 0], test = 1, alpha = 2" in icl(*words)[1]
    both = strictly(icl("theory", "task_alignment.gamma_noise", "train=1", "tau=2", *law, "--json")[1])
    assert set(both["values"]) == {"square", "last_column"}
    out = icl("theory")[1]
    assert "linear_attention.idg_error tau= alpha= kappa= rho= [ridge=0.0] [test_alpha=]" in " ".join(out.split())
    assert "in_eigenbasis" not in out
    status, _, err = icl("theory", "task_alignment.icl_error", "train=1,2", "test=1,2,3", "tau=2", *law)
    assert status == 2
    assert "test: expected a covariance of dimension 2" in err


def test_the_landscape_steps_preconditioners_and_free_energies_are_asked_too(icl):
    from icllab.theory import descent, free_energy, induction_landscape, preconditioners
    from icllab.theory.learning_coefficients import LearningCoefficient

    def asked(*words):
        return strictly(icl("theory", *words, "--json")[1])["values"]

    words = ["induction_landscape.loss", "beta=0,3", "alpha=2", "xi=1:2:3", "pairs=4", "labels=16", "leak_corrected=1"]
    wanted = [
        [induction_landscape.loss(b, 2.0, x, pairs=4, labels=16, leak_corrected=True) for x in (1.0, 1.5, 2.0)]
        for b in (0.0, 3.0)
    ]
    assert asked(*words)["loss"] == wanted
    flow_words = ["induction_landscape.flow", "start=0,0,0", "pairs=4", "labels=16"]
    flow = asked(*flow_words, "time=60")
    path = induction_landscape.flow([0.0, 0.0, 0.0], pairs=4, labels=16, time=60.0)
    assert flow["crossings.0.1"] == path.crossings[0.1]
    assert flow["parameters"] == path.parameters.tolist()
    steps = asked("descent.tied_steps", "dim=3", "length=8", "layers=1,3")
    assert [len(rates) for rates in steps["rates"]] == [1, 3]
    assert steps["loss"][1] == descent.tied_steps(dim=3, length=8, layers=3).loss
    best = asked("preconditioners.optimal", "covariance=1,2", "length=5", "noise_variance=0.1")
    assert best["matrix"] == preconditioners.optimal([1.0, 2.0], length=5, noise_variance=0.1).matrix.tolist()
    crossing = asked("free_energy.crossings", "first=0.01,1", "second=0,3,2,0.5")["crossings"]
    phases = free_energy.Phase(0.01, LearningCoefficient(1.0)), free_energy.Phase(0.0, LearningCoefficient(3.0, 2), 0.5)
    assert crossing == free_energy.crossings(*phases).tolist()
    assert " values: 0 to 100" in icl("theory", *flow_words, "time=100")[1]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", [1.0]),
        ("1,2.5,inf", [1.0, 2.5, math.inf]),
        ("0:1:3,7", [0.0, 0.5, 1.0, 7.0]),
        ("log:0.01:1:3", pytest.approx([0.01, 0.1, 1.0])),
    ],
)
def test_numbers_can_be_lists_and_ranges(text, values):
    assert formulas.numbers("tau", text) == values


@pytest.mark.parametrize(
    "text", ["", "x", "1:2", "1:2:1", "1:2:x", "log:0:1:3", "log:1", "1:inf:3", "1:2:3:4", "1:2:1e9"]
)
def test_what_is_no_number_is_refused(text):
    with pytest.raises(InputError, match="tau: expected a number, a list 1,2,4, a range"):
        formulas.numbers("tau", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stieltjes"], "unknown formula 'stieltjes'; did you mean 'wishart.stieltjes'?"),
        (["linear_attention.icl_eror"], "did you mean 'linear_attention.icl_error'?"),
        (["icl_error"], "did you mean 'dmmse.icl_error' or 'linear_attention.icl_error'"),
        (["wishart.stieltjez"], "unknown formula 'wishart.stieltjez'; did you mean 'wishart.stieltjes'?"),
        (["wishart.stieltjes", "q=1"], "expected kappa too, got q; usage: icl theory wishart.stieltjes q= kappa="),
        (
            ["wishart.stieltjes", "q=1", "kapa=1"],
            "unknown parameter of wishart.stieltjes: 'kapa'; did you mean 'kappa'?",
        ),
        (["wishart.stieltjes", "q=1", "kappa"], "wishart.stieltjes: expected key=value, got 'kappa'"),
        (["wishart.stieltjes", "q=1", "q=2"], "q: expected each parameter once"),
        (
            ["induction_landscape.escape_rate", "pairs=4", "leak_corrected=2"],
            "leak_corrected: expected 0 or 1, got 2.0",
        ),
        (["free_energy.asymptotic", "phase=1", "n=10"], "phase: expected a list of loss, learning coefficient[, mult"),
        (["wishart.stieltjes", "q=-1", "kappa=1"], "q: expected a finite number >= 0, got -1.0"),
        (["wishart.stieltjes", "q=0:1:2000", "kappa=1:2:2000"], "expected at most 1000000 combinations, got 4000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_question_that_has_no_answer(words, said, icl):
    status, out, err = icl("theory", *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_axes_of_a_run_take_ranges_as_formulas_do():
    from icllab.cli import options, parameters

    given = options.merged(parameters.RunOptions(set=["step=0:8000:5,9000", "tau=log:0.01:1:3", "name=a:b,c"]), None)[
        "set"
    ]
    assert given["step"] == ["0", "2000", "4000", "6000", "8000", "9000"]
    assert [float(tau) for tau in given["tau"]] == pytest.approx([0.01, 0.1, 1.0])
    assert given["name"] == ["a:b", "c"]


# What a formula's parameters are.


@pytest.mark.parametrize("name", formulas.listing())
def test_every_parameter_of_every_formula_has_a_definition(name):
    formula = formulas.listing()[name]
    defined = {parameter: formulas.definitions(name).get(parameter, "") for parameter in formula.kinds}
    assert formula.kinds.keys() >= formula.defaults.keys()
    for parameter, text in defined.items():
        assert text.endswith("."), parameter
        assert not re.search(r"[\\{}]|``|:math:|:func:", text), text
        domain = (
            r"[<>]|negative|integers? of at least|integer from|finite|Eigenvalues|likewise|1 or 2|Covariance|Whether"
        )
        assert re.search(domain, text) or parameter in ("tied", "test"), (parameter, text)
        scale = {"tau": "n/d^2", "alpha": "l/d", "kappa": "k/d"}.get(parameter)
        if scale and "induction" not in name:
            assert f"{parameter} = {scale}" in text
        if parameter == "rho":
            assert "Variance of the label noise, rho >= 0" in text


def test_help_of_a_formula_defines_its_parameters(icl):
    status, out, _ = icl("theory", "linear_attention.icl_error", "--help")
    assert status == 0
    text = " ".join(out.split())
    assert "usage: icl theory linear_attention.icl_error tau= alpha= kappa= rho= [ridge=0.0] [test_alpha=]" in text
    assert "tau Pretraining contexts over squared dimension, tau = n/d^2 > 0; inf allowed." in text
    assert "ridge Ridge of pretraining, lambda >= 0;" in text
    assert "Default: 0.0." in text
    answer = strictly(icl("theory", "task_alignment.gamma_noise", "tau=1", "--help", "--json")[1])
    defined = {row["name"]: row["definition"] for row in answer["parameters"]}
    assert defined["kappa"].startswith(
        "Pretraining tasks over dimension, kappa = k/d > 0"
    )  # of another module's formula
    assert defined["train"].startswith("Covariance C of the pretraining tasks")
    assert "did you mean 'linear_attention.icl_error'" in icl("theory", "linear_attention.icl_eror", "--help")[2]
    assert "Usage: icl theory" in icl("theory", "--help")[1]


def test_parameters_can_be_typed_as_options(icl):
    name = "linear_attention.icl_error"
    wanted = icl("theory", name, "tau=0.5", "alpha=10", "kappa=1", "rho=0.1", "test_alpha=3")
    assert wanted[0] == 0
    assert icl("theory", name, "--tau", "0.5", "--alpha=10", "kappa=1", "--rho", "0.1", "--test-alpha", "3") == wanted
    negative = ("--beta", "-1", "--alpha=-2", "xi=-3", "--pairs", "4", "--labels", "8")
    values = strictly(icl("theory", "induction_landscape.loss", *negative, "--json")[1])["parameters"]
    assert values == {"beta": -1.0, "alpha": -2.0, "xi": -3.0, "pairs": 4.0, "labels": 8.0}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tua", "0.5"], "unknown parameter or option of linear_attention.icl_error: '--tua'; did you mean '--tau'?"),
        (["--jsn"], "'--jsn'; did you mean '--json'?"),
        (["--tau"], "tau: expected a number, a list 1,2,4, a range"),
        (["tau", "0.5"], "expected key=value, got 'tau'; usage: icl theory linear_attention.icl_error tau="),
        (["tau=1"], "`icl theory linear_attention.icl_error --help` says what they are"),
    ],
)
def test_a_misspelt_parameter_is_told_the_right_spelling(words, complaint, icl):
    status, _, err = icl("theory", "linear_attention.icl_error", *words)
    assert (status, complaint in err) == (2, True), err


# Which functions of the theory are formulas.


@pytest.mark.parametrize("name", formulas.listing())
def test_a_formula_is_what_its_module_has(name):
    """Its signature is read from its source: the function's own has the same parameters and defaults."""
    module, _, function = name.partition(".")
    parameters = inspect.signature(getattr(importlib.import_module(f"icllab.theory.{module}"), function)).parameters
    formula = formulas.listing()[name]
    assert list(formula.kinds) == list(parameters)
    defaults = {p: value.default for p, value in parameters.items() if value.default is not value.empty}
    assert {p: repr(value) for p, value in defaults.items()} == dict(formula.defaults)


THEORY = '''
SCALE = 0.5

def broadcast(q: Numbers, *, kappa: Numbers = SCALE) -> Number:
    r"""The trace :math:`M(q)` of :func:`a.law`.

    Args:
        q: Argument, :math:`q \\ge 0`
            and finite.
        kappa: Samples over dimension.
    """

def counted(layers: int, tied: bool = False) -> "Steps":
    """Steps. Arguments beyond ``layers`` are those of :func:`broadcast`."""

def eigen(spectrum: Covariance, values: npt.ArrayLike, count: int) -> float:
    """Of eigenvalues."""

def words(name: str, q: Numbers) -> Number:
    """A text is not a number."""

def matrix(count: int) -> np.random.Generator:
    """The answer is not a number."""

def spread(*q: Numbers) -> Number:
    """The number of parameters is open."""

def named(**q: Numbers) -> Number:
    """The names of parameters are open."""

def bare(q) -> Number:
    """Nobody knows what q is."""

def without() -> Number:
    """Nothing is asked for."""

def _private(q: Numbers) -> Number:
    """A part of another formula."""
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "here.py").write_text(THEORY)
    monkeypatch.setattr(formulas, "THEORY", tmp_path)
    for cached in (formulas._functions, formulas.listing):
        cached.cache_clear()
    yield formulas.listing()
    for cached in (formulas._functions, formulas.listing):
        cached.cache_clear()


def test_a_formula_takes_numbers_and_gives_numbers(here):
    assert {name: list(formula.kinds.values()) for name, formula in here.items()} == {
        "here.broadcast": ["number", "number"],
        "here.counted": ["count", "flag"],
        "here.eigen": ["spectrum", "list", "count"],
    }


def test_parameters_have_definitions_and_defaults(here):
    assert here["here.broadcast"].summary == "The trace M(q) of a.law."
    defined = {"q": "Argument, q >= 0 and finite.", "kappa": "Samples over dimension."}
    assert formulas.definitions("here.broadcast") == formulas.definitions("here.counted") == defined
    assert here["here.broadcast"].defaults == {"kappa": "0.5"}
    assert here["here.counted"].defaults == {"tied": "False"}


def test_functions_are_the_public_ones_of_their_own_module():
    assert {"wishart.stieltjes", "saddles.flow", "preconditioners.optimal"} <= set(formulas._functions())
    assert "independent_inputs.read" not in formulas._functions()
