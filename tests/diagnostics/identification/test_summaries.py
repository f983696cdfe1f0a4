"""An identification begins with its sentence, and has no variables that say nothing."""

import jax
import numpy as np
import pytest
import xarray as xr

from icllab.algorithms import GradientDescent, LeastSquares, Ridge
from icllab.core.errors import ResultWarning
from icllab.diagnostics import PromptSplit, VerdictRule, identify
from icllab.diagnostics.identification.summaries import Identification, percent, summary
from icllab.tasks import LinearRegression

TASK = LinearRegression.convention("raventos", dim=2, length=6)
FEW = {"key": jax.random.key(0), "prompts": PromptSplit(60, fitting=20), "rule": VerdictRule(resamples=50)}
NAMES = ("ridge", "four steps", "kernel")


@pytest.mark.parametrize(
    ("verdict", "fractions", "among", "text"),
    [
        ("none of these", [0.14, 0.141, 0.6], [0, 0, 0], "ridge and four steps leave 14 %, kernel leaves 60 %"),
        ("ridge", [0.0, 0.0234, 2.5], [1, 0, 0], "ridge leaves 0 %, four steps leaves 2.3 %, kernel leaves 250 %"),
        ("indistinguishable", [1e-9, 2e-3, 0.3], [1, 1, 0], "ridge leaves less than 0.01 %, four steps leaves 0.2 %"),
        (
            "undecided",
            [0.3, 0.012, np.inf],
            [0, 0, 0],
            "four steps leaves 1.2 %, ridge leaves 30 %, kernel leaves inf %",
        ),
    ],
)
def test_the_sentence_of_a_network_names_its_nearest_candidates(verdict, fractions, among, text):
    sentence = summary([verdict], np.array([fractions]), np.array([among], bool), NAMES, 0.01)
    advice = "; more prompts may decide" if verdict == "undecided" else ""
    assert sentence == f"{verdict}: {text}; accepted is at most 1 %{advice}"


def test_the_sentence_of_several_networks_counts_verdicts():
    verdicts = ["ridge", "none of these", "ridge"]
    sentence = summary(verdicts, np.zeros((3, 3)), np.zeros((3, 3), bool), NAMES, 0.05)
    assert sentence == "of 3 networks 2 ridge and 1 none of these; accepted is at most 5 %"
    assert percent(0.1) == "10 %"


def test_it_is_shown_first_in_text_and_in_a_notebook():
    step = GradientDescent(0.3, layers=1, dim=2, normalised=True, half=True)
    with pytest.warns(ResultWarning, match="identification: predictor 'GradientDescent': 10 of 60 prompts carry"):
        result = identify(step, {"ridge": Ridge(0.2), "<step>": step}, TASK, **FEW)
    assert isinstance(result, xr.Dataset)
    assert next(iter(result.data_vars)) == "verdict"
    assert next(iter(result.attrs)) == "summary"
    sentence = result.attrs["summary"]
    assert sentence.startswith("<step>: <step> leaves 0 %, ridge leaves ")
    assert repr(result).startswith(f"{sentence}\nwarning: predictor 'GradientDescent': 10 of 60")
    html = result._repr_html_()
    assert html.index("&lt;step&gt;: &lt;step&gt; leaves 0 %") < html.index("prediction_discrepancy")
    assert "<step>" not in html
    assert repr(result.sel(candidate="ridge")).startswith(sentence)
    assert repr(Identification({"a": 1.0})).startswith("<xarray.")


def mean_on_the_host(prompt):
    return np.cumsum(np.asarray(prompt.y)) - np.asarray(prompt.y)


mean_on_the_host.traceable = False


def test_what_no_candidate_has_is_absent():
    without_gradients = {"input_gradient_discrepancy", "input_gradient_discrepancy_interval", "cosine"}
    without_gradients |= {"gradient_difference", "weight_distance"}
    result = identify(mean_on_the_host, {"ridge": Ridge(0.2)}, TASK, **FEW)
    assert not without_gradients & set(result)
    assert result.fraction_unexplained.values == result.prediction_discrepancy.values
    mixed = identify({"host": mean_on_the_host, "jax": LeastSquares()}, {"ridge": Ridge(0.2)}, TASK, **FEW)
    np.testing.assert_array_equal(np.isnan(mixed.input_gradient_discrepancy.values[:, 0]), [True, False])
    assert "weight_distance" not in mixed
