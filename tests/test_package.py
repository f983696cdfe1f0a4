"""The house: lazy names that no module shadows, and rooms that stay free of JAX."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import icllab

ROOMS = {m.name for m in pkgutil.iter_modules(icllab.__path__) if m.ispkg} - {"arena", "claims", "cli", "page"}
CONTRACT = {
    "": ["run", "check", "draw", "recorded", "open", "cite", "export", "fit", "ensemble"],
    ".core.prompt": ["Prompt", "RegressionPrompt", "TokenPrompt", "ItemLabelPrompt"],
    ".core.protocols": ["AbstractTask", "AbstractPredictor", "AbstractModel", "Trace"],
    ".tasks": [
        "FixedPrompts",
        "FunctionRegression",
        "HierarchicalRegression",
        "HigherOrderChain",
        "InContextCopying",
        "IntegratedRegression",
        "ItemLabel",
        "LinearRegression",
        "MarkovChain",
        "RepeatedTokens",
        "Standardised",
        "Table",
        "Text",
    ],
    ".algorithms": [
        "LeastSquares",
        "Ridge",
        "GaussianPosterior",
        "DiscreteMMSE",
        "LabelMap",
        "NGram",
        "bayes_optimal",
        "FromSklearn",
    ],
    ".models": [
        "edited",
        "edited_by",
        "transplanted",
        "previous_token_clamped",
        "match_clamped",
        "copy_clamped",
        "ablated",
        "DeepSets",
        "FromTorch",
        "ItemLabelNetwork",
        "LinearAttention",
        "MinimalHead",
        "PromptPerceptron",
        "Recurrent",
        "Tokens",
        "Transformer",
    ],
    ".constructions": ["gradient_descent", "gaussian_process", "dual_form", "induction_head", "induction_bounds"],
    ".models.reduced": ["fit", "ReducedLinearAttention"],
    ".theory.wishart": ["stieltjes"],
    ".theory.preconditioners": ["optimal", "loss", "family"],
    ".theory.descent": ["loss", "free_steps", "tied_steps", "plus_plus"],
    ".theory.induction_landscape": ["loss", "gradient", "hessian", "flow"],
    ".theory.learning_coefficients": ["normal_crossing", "reduced_rank_regression", "deep_linear", "tanh_network"],
    ".theory.superposition": ["loss", "gradient", "polygon"],
    ".theory.free_energy": ["asymptotic", "posterior_weights", "crossings"],
    ".theory.linear_attention": ["icl_error", "idg_error", "ridge_error", "large_context_limit"],
    ".theory.dmmse": ["icl_error", "idg_error", "task_gap", "posterior_mean"],
    ".diagnostics": [
        "LearningMachine",
        "change_points",
        "context_map",
        "context_rank",
        "delay",
        "divergences",
        "effective_dimension",
        "fisher_spectrum",
        "gradient_step_comparison",
        "head_scores",
        "hessian_spectrum",
        "icl_scores",
        "identify",
        "interpolate",
        "kaplan_meier",
        "learning_coefficient",
        "logit_lens",
        "per_length",
        "probe_layers",
        "progress_measures",
        "transitions",
        "free_energy",
        "free_energy_slope",
        "phase_weights",
        "sampled_crossings",
        "ZeroShot",
        "singular_fluctuation",
        "susceptibility",
    ],
    ".training": [
        "fit",
        "ensemble",
        "Until",
        "TargetLoss",
        "Divergence",
        "Plateau",
        "Sweep",
        "Fresh",
        "Fixed",
        "Record",
        "CheckpointStore",
        "cache_compilations",
    ],
    ".lab": ["Claim", "Control", "Estimate", "Finding", "Verdict", "Outcome"],
}


def submodules():
    return [m.name for m in pkgutil.walk_packages(icllab.__path__, "icllab.") if not m.name.endswith("__main__")]


def test_contract_names_are_callable_after_every_submodule_is_imported():
    """With lazy imports a module of the same name would take a function's place."""
    for name in submodules():
        importlib.import_module(name)
    for module, names in CONTRACT.items():
        for name in names:
            assert callable(getattr(importlib.import_module(f"icllab{module}"), name))


@pytest.mark.parametrize(
    "package", [m for m in ["icllab", *submodules()] if hasattr(importlib.import_module(m), "__path__")]
)
def test_every_public_name_of_a_room_resolves(package):
    room = importlib.import_module(package)
    for name in getattr(room, "__all__", []):
        assert getattr(room, name) is not None
        assert name in dir(room)


def test_the_public_face_is_some_sixty_names_and_no_name_stands_for_two_things():
    rooms = [importlib.import_module(f"icllab.{name}") for name in icllab.__all__ if name in ROOMS]
    assert len(rooms) == len(ROOMS)
    names = [(name, getattr(room, name)) for room in (icllab, *rooms) for name in room.__all__]
    values = {(name, id(value)) for name, value in names if not inspect.ismodule(value)}
    # 67, influence, patterning, posteriors.names and posteriors.problem, patch, task_vector, lab.Subject
    assert len(values) <= 74
    assert len({name for name, _ in values}) == len(values)


def test_every_room_opens_with_what_it_is_for():
    for name in submodules():
        module = importlib.import_module(name)
        assert (module.__doc__ or "").strip(), name


def loaded_after(statement):
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import icllab", {"jax", "numpy", "xarray", "matplotlib", "scipy"}),
        ("import icllab.core.axes, icllab.core.sources, icllab.core.errors, icllab.core.grid", {"jax", "numpy"}),
        ("from icllab.theory import linear_attention as t; t.icl_error(tau=2, alpha=1, kappa=1, rho=.1)", {"jax"}),
        ("import icllab.figures.curves", {"jax"}),
        ("from icllab.lab import registry; [registry.load(c) for c in registry.claims()]", {"jax"}),
        ("import icllab as icl; icl.cite('asymptotics/double_descent')", {"jax"}),
    ],
)
def test_what_needs_no_jax_imports_none(statement, absent):
    assert not loaded_after(statement) & absent


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'diagnostics'"):
        icllab.diagnostic  # noqa: B018


def test_the_version_is_one_in_both_distributions():
    root = Path(__file__).parents[1]
    projects = [tomllib.loads((root / place / "pyproject.toml").read_text())["project"] for place in (".", "book")]
    assert {project["version"] for project in projects} == {icllab.__version__}
    assert f"\nversion: {icllab.__version__}\n" in (root / "CITATION.cff").read_text()
