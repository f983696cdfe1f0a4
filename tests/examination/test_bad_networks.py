"""Networks that raise, answer NaN, draw numbers, need a GPU or look ahead: one line, and the rest of the report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import tasks
from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.examination.examining import examine
from icllab.examination.report import html
from icllab.examination.sentences import first_sentences

TASK = tasks.LinearRegression.convention("raventos", dim=2, length=6)
ONLY = ["contract", "in_context", "memorising"]


class AsLongAsTraining(AbstractPredictor):
    """Zero up to position 3, and NaN from there on."""

    def __call__(self, prompt):
        return jnp.where(jnp.arange(len(prompt.y)) > 3, jnp.nan, 0.0)


def looks_ahead(prompt):
    answers = np.zeros(len(prompt.y))
    answers[[2, 5]] = np.asarray(prompt.y)[[2, 5]]
    return answers


def random(prompt):
    return np.random.default_rng().normal(size=np.shape(np.asarray(prompt.y)))


def raises(prompt):
    raise RuntimeError("weights are on the moon")


def needs_cuda(prompt):
    torch = pytest.importorskip("torch")
    return torch.tensor(np.asarray(prompt.y), device="cuda")


def of_other_dimension(prompt):
    return np.asarray(prompt.x) @ np.ones(3)


def examined(network):
    return examine(network, TASK, key=jax.random.key(0), only=ONLY, size="small")


@pytest.mark.parametrize(
    ("network", "verdict", "text"),
    [
        (AsLongAsTraining(), "not finite", "positions 4, 5, 6"),
        (looks_ahead, "not causal", "positions 2, 5"),
        (random, "not deterministic", "two answers"),
    ],
)
def test_a_fault_is_a_line_of_the_contract_and_the_rest_of_the_report_is_there(network, verdict, text):
    found = examined(network)
    assert found["contract"].reason == ""
    contract = found["contract"].finding
    assert (contract.verdict, contract.fault) == (verdict, True)
    assert text in contract.sentence
    assert first_sentences(found)[-1].startswith(f"Worst: {verdict}.")
    assert found["in_context"].status == "answered"
    assert "Does the network learn in context?" in html([found])


class RaisesOnTheWay:
    """A network on the host that answers its first calls and then raises."""

    def __init__(self):
        self.calls = 0

    def __call__(self, prompt):
        self.calls += 1
        if self.calls > 100:
            raise MemoryError("no memory is left")
        return 0 * np.asarray(prompt.y)


def test_a_network_that_raises_on_the_way_fails_section_by_section():
    found = examined(RaisesOnTheWay())
    assert [section.status for section in found.sections] == ["failed", "failed", "not asked"]
    assert "no memory is left" in found["in_context"].reason


@pytest.mark.parametrize(("network", "text"), [(raises, "weights are on the moon"), (needs_cuda, "CUDA")])
def test_what_a_network_raises_is_a_line_of_the_report(network, text):
    found = examined(network)
    assert [section.status for section in found.sections] == ["failed", "not asked", "not asked"]
    assert text in found["contract"].reason
    assert text in found["in_context"].reason
    assert text in first_sentences(found)[-1]
    assert text in html([found])


def test_another_input_dimension_is_refused_and_named():
    with pytest.raises(InputError, match="dim of the task: expected 3"):
        examined(of_other_dimension)
