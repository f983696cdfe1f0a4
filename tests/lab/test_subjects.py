"""A user's network in the place of a claim's own: its name reaches the measurement, and nothing else changes."""

import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from icllab.cli.entry import main
from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import conformance, records, registry
from icllab.lab.controls import control_verdicts, unfailed
from icllab.lab.job import new_request
from icllab.lab.run import compute

CLAIM = '''
"""A network that adds."""
from icllab.figures.curves import curves
from icllab.lab import Claim, Control, Subject, checks, estimates


def check(dataset):
    """The error is below a half."""
    return checks.below("ratio", "error", estimates.mean(dataset["loss_ratio"]), 0.5)


def figure(dataset):
    """The ratio."""
    return curves(dataset, x="dim", y="loss_ratio")


claim = Claim(
    title="A sum",
    sentence="The network answers the sum of the inputs.",
    conditions="The sum itself, in two dimensions.",
    sources=("Lu24",),
    quantities=("loss_ratio",),
    static=("dim",),
    sizes={"smoke": {"dim": (2,), "seed": 2}, "small": {"dim": (2,), "seed": 12}},
    subject=Subject("regression", "the sum", controls=("zero", "doubled")),
    controls={
        "zero": Control("the network answers zero", measure={"factor": 0.0}),
        "doubled": Control("the ratio is doubled", theory=lambda d: d.assign(loss_ratio=10 + d["loss_ratio"])),
        "own": Control("the claim's own network answers zero", measure={"own_factor": 0.0}),
    },
)
'''
MEASURE = '''
"""Losses."""
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt
from icllab.lab.networks import require_answers
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, factor=1.0, own_factor=1.0, network=None, task=None):
    """The squared error of a network that should answer the sum of the inputs."""
    task = LinearRegression.convention("raventos", dim=point.dim, length=4) if task is None else task
    network = (lambda prompt: own_factor * prompt.x.sum(-1)) if network is None else network
    require_answers(network, task)

    def error(seed):
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key))])
        prompt = RegressionPrompt(jnp.asarray(rng.normal(size=(16, task.dim))), jnp.zeros(16))
        right = prompt.x.sum(-1)
        return np.mean((factor * np.asarray(network(prompt)) - right) ** 2) / np.mean(right**2)

    return {"loss_ratio": (("seed",), [error(seed) for seed in point.seed])}
'''
NETWORKS = """
import equinox as eqx


class Sum(eqx.Module):
    strength: float

    def __call__(self, prompt):
        return self.strength * prompt.x.sum(-1)


def near():
    import jax.numpy as jnp

    return Sum(jnp.asarray(STRENGTH))


def zero(prompt):
    return 0 * prompt.y


def broken(prompt):
    raise RuntimeError("a layer of mine")
"""
TASK = "linear_regression:raventos dim=3 length=8"


class Sum(eqx.Module):
    strength: float

    def __call__(self, prompt):
        return self.strength * prompt.x.sum(-1)


@pytest.fixture
def folder(tmp_path):
    """A folder with the claim, whose name is ``mine/the_sum``."""
    return write_claim(tmp_path / "mine", CLAIM, MEASURE)


def write_claim(folder, claim, measure, name="the_sum"):
    (folder / name).mkdir(parents=True)
    (folder / name / "claim.py").write_text(claim)
    (folder / name / "measure.py").write_text(measure)
    return folder


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NETWORKS.replace("STRENGTH", "0.9"))
    return path


NAME = "mine/the_sum"


def command(capsys, *words):
    status = main([*map(str, words)])
    return status, capsys.readouterr()


def test_a_network_takes_the_place_of_the_claims_own(folder, file, tmp_path, capsys):
    """One for which the claim holds and one for which it fails: both would hold if the claim's own were measured."""
    out = tmp_path / "out"
    for network, verdict, status in (("near", "holds", 0), ("zero", "fails", 1)):
        words = ("run", NAME, "--network", f"{file}:{network}", "--claims", folder, "--out", out)
        exit_status, printed = command(capsys, *words)
        assert exit_status == status
        assert f"{verdict} of {file}:{network} (small)" in printed.out.replace("\n", "")
        assert "control zero" in printed.out
        exit_status, printed = command(capsys, *words, "--json")
        answer = json.loads(printed.out)
        assert answer["verdict"] == verdict
        assert answer["network"] == f"{file}:{network}"
        assert answer["controls"] == {"zero": "fails", "doubled": "fails"}
        assert answer["cells"] == {"computed": 0, "kept": 1}
        dataset = icl.open(answer["results"].removesuffix("/results.nc"), claims=folder)
        assert dataset.attrs["network"] == f"{file}:{network}"
    icl.run(NAME, out=out, claims=folder)
    assert icl.check(NAME, out=out, claims=folder).outcome == "holds"
    assert icl.check(NAME, out=out, claims=folder, network=f"{file}:zero").outcome == "fails"


def test_nothing_of_a_run_without_a_network_changes(folder, file, tmp_path):
    """The configuration is that of today, and the same network gives the same numbers."""
    own = icl.run(NAME, out=tmp_path, claims=folder)
    assert "network" not in json.loads(own.attrs["configuration"])
    assert "network" not in own.attrs
    same = icl.run(NAME, out=tmp_path, claims=folder, network=Sum(1.0))
    np.testing.assert_array_equal(own["loss_ratio"], same["loss_ratio"])
    assert own["loss_ratio"].max() == 0
    assert json.loads(same.attrs["configuration"])["network"]["name"] == "Sum"
    other = icl.run(NAME, out=tmp_path, claims=folder, network=f"{file}:near", task=TASK)
    np.testing.assert_allclose(other["loss_ratio"], 0.01, rtol=1e-3)


def test_a_resume_with_other_weights_is_refused_with_the_difference(folder, file, tmp_path):
    options = {"out": tmp_path / "out", "claims": folder, "network": f"{file}:near"}
    icl.run(NAME, **options)
    file.write_text(NETWORKS.replace("STRENGTH", "0.8"))
    with pytest.raises(InputError, match=r"files\.net\.py is .*weights is"):
        icl.run(NAME, **options)
    assert icl.run(NAME, **options, fresh=True).attrs["network"] == f"{file}:near"


def test_an_object_stays_in_this_process(folder, tmp_path):
    with pytest.raises(InputError, match=r"expected a name such as file\.py:net.*got Sum, an object"):
        icl.run(NAME, out=tmp_path, claims=folder, network=Sum(1.0), workers=2)


@pytest.mark.slow
def test_a_name_travels_to_other_processes(folder, file, tmp_path):
    here, there = (
        icl.run(NAME, out=tmp_path / str(workers), claims=folder, network=f"{file}:zero", workers=workers)
        for workers in (None, 2)
    )
    np.testing.assert_array_equal(here["loss_ratio"], there["loss_ratio"])


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("broken", {}, r"network: expected an answer to a prompt of the task .*RuntimeError: a layer of mine"),
        (
            "near",
            {"task": "markov_chain vocabulary=3 tokens=8"},
            r"expected a task of regression, got 'one of tokens'",
        ),
        ("near", {"control": "own"}, r"control of mine/the_sum for another network"),
        ("none", {}, r"near"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(folder, file, tmp_path, network, options, message):
    with pytest.raises(InputError, match=message) as caught:
        icl.run(NAME, out=tmp_path, claims=folder, network=f"{file}:{network}", **options)
    assert "\n" not in str(caught.value)


def test_a_network_that_raises_late_fails_its_cell(folder, tmp_path):
    """A line, exit status 4, and the traceback in a file."""

    def late(prompt):
        if len(prompt.y) > 5:
            raise RuntimeError("no memory of mine")
        return 0 * prompt.y

    with pytest.raises(EnvironmentFault, match="RuntimeError: no memory of mine"):
        icl.run(NAME, out=tmp_path, claims=folder, network=late)


def test_a_claim_without_a_subject_takes_no_network(tmp_path):
    folder = write_claim(tmp_path / "mine", CLAIM.replace("    subject=", "    # "), MEASURE)
    with pytest.raises(InputError, match=r"expected a claim that speaks of one network"):
        icl.run(NAME, out=tmp_path, claims=folder, network=Sum(1.0))
    assert "subject" not in records.about(registry.load(NAME, folder))


def test_the_record_states_the_network_of_the_claim(folder):
    claim = registry.load(NAME, folder)
    assert records.about(claim)["subject"] == {"kind": "regression", "run": False, "network": "the sum"}
    assert list(conformance.measurement_faults(claim, folder)) == []


def test_a_subject_needs_an_argument_network_and_known_controls(tmp_path):
    folder = write_claim(tmp_path / "mine", CLAIM, MEASURE.replace(", network=None, task=None", ""))
    faults = list(conformance.measurement_faults(registry.load(NAME, folder), folder))
    assert any("no argument network" in fault for fault in faults)
    folder = write_claim(tmp_path / "two", CLAIM.replace('("zero", "doubled")', '("zeros",)'), MEASURE)
    with pytest.raises(InputError, match="control of the subject"):
        registry.load("two/the_sum", folder)


def test_prompts_of_the_claims_own_take_no_task(tmp_path, file):
    measure = MEASURE.replace(", task=None", "").replace(" if task is None else task", "")
    folder = write_claim(tmp_path / "mine", CLAIM, measure)
    with pytest.raises(InputError, match="asks prompts of its own"):
        icl.run(NAME, out=tmp_path, claims=folder, network=f"{file}:near", task=TASK)


def test_a_control_that_does_not_fail_is_told(folder, tmp_path):
    """The network that answers zero is the same world doubled and not: a check that cannot fail says so."""
    claim = CLAIM.replace("10 + d", "0 + d")
    folder = write_claim(tmp_path / "other", claim, MEASURE)
    request = new_request("other/the_sum", "small", out=tmp_path, claims=folder, network=Sum(1.0))
    compute(request)
    verdicts = control_verdicts(request)
    assert verdicts == {"zero": "fails", "doubled": "holds"}
    assert unfailed(verdicts) == ["the check does not fail under the control 'doubled': the verdict proves less"]


RUN_CLAIM = CLAIM.replace('static=("dim",),', 'static=("dim",),\n    outputs=("step",),')
RUN_CLAIM = RUN_CLAIM.replace('"dim": (2,)', '"dim": (2,), "step": (0, 1)').replace(
    '"the sum",', '"the sum", run=True,'
)
RUN_CLAIM = RUN_CLAIM.replace('dataset["loss_ratio"])', 'dataset["loss_ratio"].isel(step=-1))')
RUN_MEASURE = MEASURE.replace("    require_answers(network, task)\n", "").replace(
    "def error(seed)", "def error(seed, network)"
)
RUN_MEASURE = RUN_MEASURE.replace(
    """(("seed",), [error(seed) for seed in point.seed])}""",
    """(
        ("seed", "step"), [[error(seed, network[step]) for step in point.step] for seed in point.seed])}""",
)


def test_a_training_run_brings_its_steps(tmp_path):
    folder = write_claim(tmp_path / "mine", RUN_CLAIM, RUN_MEASURE)
    run = {100: Sum(1.0), 0: lambda prompt: jnp.zeros_like(prompt.y), 7: Sum(0.5)}
    dataset = icl.run(NAME, out=tmp_path, claims=folder, network=run)
    assert dataset["step"].values.tolist() == [0, 7, 100]
    np.testing.assert_allclose(dataset["loss_ratio"].mean(("seed", "dim")), [1, 0.25, 0], atol=1e-6)
    assert json.loads(dataset.attrs["configuration"])["network"]["steps"] == [0, 7, 100]
    with pytest.raises(InputError, match="a training run of a predictor of regression"):
        icl.run(NAME, out=tmp_path / "two", claims=folder, network=Sum(0.3))
