"""The scripts of the page on clusters say what the batch systems and the library understand."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import icllab as icl

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
(SCRIPT,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "SLURMCluster(" in block)
(PBS,) = re.findall(r"`(PBSCluster\(.*?), \.\.\.\)`", PAGE)


def calls(text):
    """Name -> a call of that name."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {ast.unparse(call.func): call for call in found}


def keywords(call, **names):
    return {k.arg: eval(ast.unparse(k.value), {}, names) for k in call.keywords}


@pytest.mark.parametrize("system", ["SLURM", "PBS"])
def test_a_job_starts_workers_of_one_thread(system):
    jobqueue = pytest.importorskip("dask_jobqueue")
    job = {"SLURM": jobqueue.slurm.SLURMJob, "PBS": jobqueue.pbs.PBSJob}[system]
    given = keywords(calls(SCRIPT if system == "SLURM" else PBS + ")")[f"{system}Cluster"], THREADS="export A=1")
    given.pop("scheduler_options", None)
    script = job("tcp://127.0.0.1:1", name="worker", **given).job_script()
    assert "--nthreads 1 " in script
    assert "--nworkers 8 --nanny" in script
    if system == "SLURM":
        assert script.index("export A=1") < script.index("dask_worker")
        assert all(line in script for line in ("#SBATCH -p normal", "#SBATCH -A project", "#SBATCH -t 04:00:00"))
    else:
        assert "#PBS -l select=1:ncpus=8:mem=32gb" in script


def test_the_script_calls_the_library_as_it_is():
    script = calls(SCRIPT)
    for name, function in {"icl.run": icl.run, "icl.check": icl.check}.items():
        call = script[name]
        bound = inspect.signature(function).bind(*call.args, **{k.arg: k.value for k in call.keywords})
        assert bound.arguments


def test_the_options_of_its_commands_exist(capfd):
    from icllab.cli import main

    assert main(["run", "--help"]) == 0
    known = set(re.findall(r"--[a-z]+", capfd.readouterr().out))
    commands = re.findall(r"icl run ([^`\n|]*(?:\\\n[^`\n]*)?)", PAGE)
    used = {option for command in commands for option in re.findall(r"--[a-z]+", command)}
    assert used >= {"--shard", "--scheduler", "--workers", "--size", "--out"}
    assert used <= known
