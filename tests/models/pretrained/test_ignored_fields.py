"""Results on a model name the fields of its file that were ignored, however the model reaches a diagnostic."""

import ast
import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors")

import language_models as files

from icllab import diagnostics, models, tasks
from icllab.models import pretrained
from icllab.models.pretrained.ignored_fields import ignored_fields

KEY, TASK = jax.random.key(0), tasks.RepeatedTokens(vocabulary=files.VOCABULARY, period=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = files.write_folder(tmp_path_factory.mktemp("model"), files.TIED | {"logit_scale": 1.0, "other": 2})
    return pretrained.load(folder, ignore=["logit_scale", "other"])


NAMES = {"ignored": ["logit_scale", "other"]}


class Wrapper:
    """A predictor of a user that holds a model."""

    def __init__(self, model):
        self.parts = {"model": [model]}

    def __call__(self, prompt):
        return self.parts["model"][0](prompt)


def test_a_model_is_found_in_what_holds_it(model):
    deeper = eqx.tree_at(lambda m: m.blocks, model, model.blocks[:1])
    held = (
        *(model, deeper, {"a": model}, [model], Wrapper(model), Wrapper(model).__call__),
        *(functools.partial(lambda m, prompt: m(prompt), model), eqx.filter_jit(model), lambda prompt: model(prompt)),
        *(models.ablated(model, heads=[(0, 1)]), models.edited(model, lambda name, value: value)),
    )
    assert [ignored_fields(value) for value in held] == [NAMES] * len(held)
    plain = models.Transformer.lu(dim=3, key=KEY)
    assert ignored_fields(plain, len, 3, None, lambda prompt: plain(prompt)) == {}


def test_a_comparison_with_other_logits_names_ignored_fields(model):
    result = pretrained.verify(model, [1, 2], np.ones((2, files.VOCABULARY)))
    assert result.attrs["ignored"] == NAMES["ignored"]


@pytest.mark.slow
def test_results_name_ignored_fields(model):
    by_name = {"plain": lambda prompt: model(prompt), "other": models.ablated(model, heads=[(0, 0)])}
    uniform, sampler = (lambda prompt: jnp.zeros((5, files.VOCABULARY))), diagnostics.SGLD(draws=10, chains=4, batch=4)
    norm = lambda m: m.final_norm  # noqa: E731
    for result in (
        diagnostics.per_length(by_name, TASK, key=KEY, prompts=4),
        diagnostics.logit_lens(model, TASK, key=KEY, prompts=4),
        diagnostics.identify(uniform, {"model": model}, TASK, key=KEY, prompts=diagnostics.PromptSplit(12, fitting=10)),
        diagnostics.coefficient_at_temperature(
            diagnostics.LocalPosterior.from_network(model, TASK, key=KEY, data=8, weights=norm),
            sampler=sampler,
            key=KEY,
        ),
    ):
        assert result.attrs["ignored"] == NAMES["ignored"]


PARAMETERS, RESULTS = ("model", "predictors", "predictor_or_run", "loss", "posterior"), ("xr.Dataset", "ContextMap")
PLACES = ("@names_ignored", "ignored_fields(", "PredictorAxes.from_predictors(", "= per_length(")


def test_every_diagnostic_of_a_model_names_them():
    """The module of each function from a model to a Dataset has one of the places that name ignored fields."""
    checked, init = 0, Path(diagnostics.__file__).read_text(encoding="utf-8")
    names = {
        alias.name for node in ast.walk(ast.parse(init)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for file in Path(diagnostics.__file__).parent.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and node.name in names:
                first = next(iter(node.args.args), None)
                if first is not None and first.arg in PARAMETERS and ast.unparse(node.returns) in RESULTS:
                    assert any(place in source for place in PLACES), node.name
                    checked += 1
    assert checked >= 15
