"""Warnings of results as Python warnings: with their number, once, at the user's line, and none from inside."""

import threading
import warnings

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import ResultWarning
from icllab.core.result_warnings import collected, warn, warn_at_once, warns

SENTENCE = "chains disagree"


def estimates(values, *, texts=(SENTENCE,)):
    numbers = {"estimate": values, "mcse": np.asarray(values) * 0 + 0.11} if np.ndim(values) == 0 else {}
    numbers |= {} if np.ndim(values) == 0 else {"estimate": ("nbeta", values)}
    return xr.Dataset(numbers, attrs={"warnings": list(texts)})


@warns("learning coefficient")
def measured(values=3.24, texts=(SENTENCE,)):
    return estimates(values, texts=texts)


def caught(function):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        function()
    return records


def test_a_warning_has_its_number_and_the_line_of_the_call():
    (record,) = caught(measured)
    assert str(record.message) == f"learning coefficient 3.24 ± 0.1: {SENTENCE}"
    assert record.category is ResultWarning
    assert record.filename == __file__


@pytest.mark.parametrize(
    ("values", "subject"),
    [
        ([1.0, np.nan, 3.0, 2.0], "learning coefficient from 1 to 3"),
        ([np.nan], "learning coefficient"),
        ([], "learning coefficient"),
    ],
)
def test_several_numbers_are_told_by_their_range(values, subject):
    (record,) = caught(lambda: measured(values))
    assert str(record.message) == f"{subject}: {SENTENCE}"


def test_every_sentence_is_issued_each_time_the_line_runs():
    texts = ("one", "two")
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("default")
        for _ in range(2):
            measured(1.0, texts)
    assert [str(record.message).rpartition(": ")[2] for record in records] == ["one", "two", "one", "two"]


def test_only_the_outermost_result_warns():
    @warns("sum")
    def outer():
        measured()
        return estimates(1.0, texts=("of the sum",))

    (record,) = caught(outer)
    assert str(record.message) == "sum 1 ± 0.1: of the sum"
    assert not caught(lambda: outer_of_failure(measured))
    assert len(caught(measured)) == 1


def outer_of_failure(function):
    """A decorated function that raises after an inner result."""

    @warns("failure")
    def failing():
        function()
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        failing()


def test_none_is_issued_while_they_are_collected_but_in_other_threads():
    def both():
        with collected():
            measured()
            warn([SENTENCE], "a number")
            thread = threading.Thread(target=measured)
            thread.start()
            thread.join()

    assert len(caught(both)) == 1


def test_a_warning_before_the_result_is_not_issued_again():
    @warns("coefficient")
    def early():
        warn_at_once("at once")
        warn_at_once("at once")
        return estimates(1.0, texts=("at once", "later"))

    for _ in range(2):
        assert [str(record.message) for record in caught(early)] == [
            "coefficient: at once",
            "coefficient 1 ± 0.1: later",
        ]

    @warns("sum")
    def outer():
        early()
        return estimates(1.0, texts=())

    assert not caught(outer)
    assert not caught(lambda: warn_at_once("outside"))


@pytest.mark.parametrize("result", [estimates(1.0, texts=("",)), None, 3.0, xr.Dataset(), estimates(1.0, texts=())])
def test_a_result_without_warnings_is_silent(result):
    assert not caught(warns("number")(lambda: result))


def test_results_of_other_kinds_warn_by_their_attribute():
    class Draws:
        def warnings(self):
            return [SENTENCE]

    class ContextMap:
        warnings = SENTENCE

    for result in (Draws(), ContextMap()):
        (record,) = caught(warns("draws")(lambda result=result: result))
        assert str(record.message) == f"draws: {SENTENCE}"
