"""The texts for other batch systems: which shard each job measures, and what a cluster is told."""

import os
import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
PAGE = (Path(__file__).parents[3] / "docs" / "batch-systems.md").read_text("utf-8")
PBS, KUBERNETES, SKYPILOT = re.findall(r"```(?:bash|yaml)\n(.*?)```", PAGE, re.DOTALL)
COUNT = 8


def pod():
    (container,) = yaml.safe_load(KUBERNETES)["spec"]["template"]["spec"]["containers"]
    return container


def shells():
    """The shell's text of each system, and the variable that has the job's number, with its first value."""
    yield re.sub(r"cd .*\n", "", PBS), "PBS_ARRAY_INDEX", 1
    yield pod()["args"][0], "JOB_COMPLETION_INDEX", 0
    yield yaml.safe_load(SKYPILOT)["run"], "SKYPILOT_NODE_RANK", 0


@pytest.mark.parametrize(("text", "variable", "first"), [*shells()], ids=["pbs", "kubernetes", "skypilot"])
def test_every_shard_is_one_jobs(text, variable, first, tmp_path):
    """The shell itself fills in each job's number."""
    (tmp_path / "icl").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "icl").chmod(0o755)
    for number in range(COUNT):
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", variable: str(first + number)}
        done = subprocess.run(["/bin/sh", "-c", text], env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[:2] == ["run", "asymptotics/double_descent"]
        assert done.stdout.splitlines()[-2:] == ["--shard", f"{number + 1}/{COUNT}"]


def test_jobs_are_as_many_as_shards():
    assert f"#PBS -J 1-{COUNT}\n" in PBS
    spec = yaml.safe_load(KUBERNETES)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", COUNT, COUNT)
    assert yaml.safe_load(SKYPILOT)["num_nodes"] == COUNT


def test_jobs_that_end_early_begin_again():
    assert "#PBS -r y\n" in PBS
    spec = yaml.safe_load(KUBERNETES)["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which a podFailurePolicy needs
    assert yaml.safe_load(SKYPILOT)["resources"]["use_spot"]


def test_results_are_on_a_volume_of_all_jobs():
    spec = yaml.safe_load(KUBERNETES)["spec"]["template"]["spec"]
    assert pod()["volumeMounts"] == [{"name": spec["volumes"][0]["name"], "mountPath": "/results"}]
    assert all(isinstance(row["value"], str) for row in pod()["env"])
    assert yaml.safe_load(SKYPILOT)["file_mounts"]["/results"]["mode"] == "MOUNT_CACHED"


def test_what_was_not_tried_says_so():
    assert "None of them was tried on a cluster" in PAGE
