"""Results of examinations: Holm's correction, files, the report, and two networks on the same prompts."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
import xarray as xr

import icllab as icl
from icllab import algorithms, tasks
from icllab.core.errors import InputError
from icllab.examination.comparison import differences
from icllab.examination.examining import Examination, corrected, examine, resumed, size_of
from icllab.examination.measuring import Mean
from icllab.examination.results import Answered, read_cell, require_same, stored_size, write_cell
from icllab.examination.section import Finding, Pace, holm, tail
from icllab.examination.sections import SECTIONS
from icllab.examination.sentences import first_sentences
from icllab.examination.subject import Subject, digest

TASK = tasks.LinearRegression.convention("raventos", dim=2, length=6)
RIDGE = algorithms.bayes_optimal(TASK)


@pytest.fixture(scope="module")
def examined():
    return examine({"ridge": RIDGE, "mean": Mean()}, TASK, key=jax.random.key(0), only=["in_context"], size="small")


def test_holm_is_a_step_down():
    assert holm({"a": 0.01, "b": 0.02, "c": 0.04}, 0.05) == {"a": True, "b": True, "c": True}
    assert holm({"a": 0.02, "b": 0.001, "c": 0.03}, 0.05) == {"b": True, "a": True, "c": True}
    assert holm({"a": 0.02, "b": 0.03, "c": 0.04}, 0.05) == {"a": False, "b": False, "c": False}
    assert holm({"a": 0.001, "b": 0.03, "c": 0.04}, 0.05) == {"a": True, "b": False, "c": False}


def test_the_joint_error_of_holm_under_the_null_is_the_level():
    rng = np.random.default_rng(0)
    draws = rng.random((4000, 6))
    false = [any(holm(dict(zip("abcdef", row.tolist(), strict=True)), 0.05).values()) for row in draws]
    assert abs(np.mean(false) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / len(draws))


def test_tail_is_the_upper_tail_of_a_normal_estimate():
    assert tail(0.0, 1.0) == 0.5
    assert np.isclose(tail(1.96, 1.0), 0.025, atol=1e-3)
    assert tail(1.0, 0.0) == 0.0
    assert tail(np.nan, 1.0) == 1.0


def test_a_first_verdict_that_holm_does_not_reject_becomes_undecided():
    def section(name, p_value):
        return Answered(name, "answered", finding=Finding("yes", "Yes.", 1.0, 0.1, "number", p_value=p_value))

    before = Examination({}, (section("in_context", 0.03), section("algorithm", 0.04), section("elsewhere", 0.04)))
    verdicts = [s.finding.verdict for s in corrected(before).sections]
    assert verdicts == ["undecided", "undecided", "yes"]  # the last is not one of those that are stated first


def test_saved_sections_are_plain_netcdf_and_are_judged_the_same(examined, tmp_path):
    one = examined["ridge"]
    one.save(tmp_path)
    with xr.open_dataset(tmp_path / "in_context.nc", engine="h5netcdf") as dataset:
        assert np.array_equal(dataset["loss"], one.dataset("in_context")["loss"])
    again = read_cell(tmp_path / "in_context.nc")
    assert again.finding.sentence == one["in_context"].finding.sentence
    assert json.loads((tmp_path / "examination.json").read_text())["size"] == "small"


def test_truth_values_of_a_measurement_are_kept(examined, tmp_path):
    section = examined["ridge"]["in_context"]
    measured = section.dataset.assign_attrs(control_variate=True)
    write_cell(tmp_path, replace(section, dataset=measured))
    assert read_cell(tmp_path / "in_context.nc").dataset.attrs["control_variate"] == 1


def test_a_measurement_that_cannot_be_kept_is_a_failed_section_and_the_others_go_on(examined, tmp_path):
    section = examined["ridge"]["in_context"]
    odd = replace(section, dataset=section.dataset.assign_attrs(odd={"a": object()}))
    run = {"contract": odd, "in_context": section}.__getitem__
    first, second = resumed(tmp_path, ["contract", "in_context"], run)
    assert (first.status, second.status) == ("failed", "answered")
    assert "is not kept" in first.reason


def test_a_folder_of_another_network_is_refused_with_the_difference(examined, tmp_path):
    examined["ridge"].save(tmp_path)
    require_same(tmp_path, examined["ridge"].header)
    with pytest.raises(InputError, match=r"weights is .* there and .* here"):
        require_same(tmp_path, examined["mean"].header)


def test_a_folder_goes_on_at_its_own_size(examined, tmp_path):
    assert stored_size(tmp_path) is None
    examined["ridge"].save(tmp_path)
    assert stored_size(tmp_path) == "small"


def test_numbers_depend_on_the_key_alone(examined):
    again = examine({"ridge": RIDGE}, TASK, key=jax.random.key(0), only=["in_context"], size="small")["ridge"]
    assert again["in_context"].finding == examined["ridge"]["in_context"].finding
    other = examine({"ridge": RIDGE}, TASK, key=jax.random.key(1), only=["in_context"], size="small")["ridge"]
    assert other["in_context"].finding.number != again["in_context"].finding.number


def test_differences_of_two_networks_are_paired(examined):
    (row,) = differences(examined["ridge"], examined["mean"])
    samples = [examined[name].dataset("in_context")["samples"].values for name in ("ridge", "mean")]
    assert np.isclose(row["difference"], samples[0].mean() - samples[1].mean())
    unpaired = np.hypot(*(s.std(ddof=1) / np.sqrt(s.size) for s in samples))
    assert 0 < row["error"] < unpaired
    assert differences(examined["ridge"], examined["ridge"])[0]["error"] == 0


def test_six_sentences_say_why_a_question_was_not_asked(examined):
    sentences = first_sentences(examined["ridge"])
    assert len(sentences) == 6
    assert sentences[0].startswith("At the last position the loss is ")
    assert sentences[1] == "algorithm: skipped."
    assert sentences[-1] == "Worst: nothing was found."
    assert "does not learn in context" in first_sentences(examined["mean"])[-1]


def test_the_report_is_one_file_that_loads_nothing(examined, tmp_path):
    text = examined["ridge"].report(tmp_path / "report.html").read_text()
    assert "Does the network learn in context?" in text
    assert "data:image/png;base64," in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_size_is_the_largest_that_the_minutes_afford():
    subject = Subject.of(RIDGE, TASK)
    assert size_of(None, 1e-6, subject, list(SECTIONS), Pace(1.0, 1.0)).name == "small"
    assert size_of(None, 1e6, subject, list(SECTIONS), Pace(1.0, 1.0)).name == "large"
    assert size_of("medium", 1e-6, subject, list(SECTIONS), Pace(1.0, 1.0)).name == "medium"
    with pytest.raises(InputError, match="unknown size"):
        size_of("big", 1.0, subject, list(SECTIONS), Pace(1.0, 1.0))


def test_a_digest_is_that_of_the_numbers():
    one, other = algorithms.Ridge(1.0), algorithms.Ridge(2.0)
    assert digest(one) == digest(algorithms.Ridge(1.0)) != digest(other)


def test_unknown_sections_are_refused():
    with pytest.raises(InputError, match="unknown section 'algoritm'; did you mean 'algorithm'"):
        icl.examine(RIDGE, TASK, key=jax.random.key(0), only=["algoritm"])
