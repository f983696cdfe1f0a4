"""``icl posteriors``: the list, files for PyTorch that import nothing of ours, and the score of a user's function."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from faults.processes import strictly

from icllab import posteriors

ESTIMATORS = """
def known_level(posterior, *, key):
    share = posterior.nbeta / (posterior.nbeta + posterior.localization)
    return {"level": (5.0, 0.1), "gradients": 7}


def refusing(posterior, *, key):
    return {"level": (1.0, 0.1), "warnings": ["not to be trusted"]}


number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ESTIMATORS)
    return path


def test_the_list_has_every_problem_with_the_digest(icl):
    status, out, _ = icl("posteriors", "list")
    assert status == 0
    assert all(name in out for name in posteriors.names())
    assert posteriors.digest()[:16] in out
    data = strictly(icl("posteriors", "list", "--json")[1])
    assert data["digest"] == posteriors.digest()
    assert [row["problem"] for row in data["problems"]] == posteriors.names()


def test_an_exported_folder_needs_pytorch_alone(icl, tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "regression"
    status, out, _ = icl("posteriors", "export", "regression", "--to", "torch", "--folder", folder, "--key", "3")
    assert status == 0
    assert out.split() == [str(folder / name) for name in ("problem.py", "data.npz", "answers.json")]
    code = (
        "import sys; sys.path.insert(0, '.'); import problem, torch; model = problem.Problem(); "
        "rows = problem.token_rows(model); losses = problem.loss_fn(model, rows); "
        "print(tuple(rows.shape), tuple(losses.shape), round(float(model().mean().detach()), 12), "
        "torch.bincount(rows[:, 0]).unique().tolist(), 'icllab' in sys.modules, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    drawn = posteriors.problem("regression", key=jax.random.key(3))
    level = float(np.mean(drawn.numpy_loss(drawn.at)))
    assert done.stdout.strip() == f"(280, 2) (280, 1) {round(level, 12)} [7] False False"
    stated = json.loads((folder / "answers.json").read_text())
    assert stated["nbeta"] == drawn.nbeta
    np.testing.assert_allclose(stated["answers"]["influence"]["value"], drawn.answers["influence"].value)
    assert "\nPRIOR = None " in (folder / "problem.py").read_text()
    elsewhere = tmp_path / "elsewhere"
    assert icl("posteriors", "export", "prior_elsewhere", "--folder", elsewhere)[0] == 0
    prior = posteriors.problem("prior_elsewhere").prior
    assert f"\nPRIOR = ({prior.centre.tolist()}, 0.05)" in (elsewhere / "problem.py").read_text()
    status, _, err = icl("posteriors", "export", "regression", "--folder", folder)
    assert status == 2
    assert "expected a new or empty one" in err


def test_a_users_function_is_scored(icl, file):
    words = ("--problem", "quadratic", "--problem", "prior_elsewhere")
    status, out, _ = icl("posteriors", "score", f"{file}:known_level", *words)
    assert status == 1
    assert "wrong without a warning: prior_elsewhere, 5; it has no answer" in out
    data = strictly(icl("posteriors", "score", f"{file}:known_level", *words, "--key", "4", "--json")[1])
    assert [(row["problem"], row["key"]) for row in data["rows"]] == [
        ("quadratic", None), ("quadratic", 4), ("prior_elsewhere", None), ("prior_elsewhere", 4),
    ]  # fmt: skip
    first = data["summaries"][0]
    assert (first["quantity"], first["difficulty"], first["count"], first["gradients"]) == ("level", "regular", 2, 7)
    assert first["coverage"]["0.5"][0] == 1
    status, out, _ = icl("posteriors", "score", f"{file}:refusing", *words)
    assert status == 0
    assert "wrong without" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py"], "FILE:FUNCTION: expected a file and the name of a function in it"),
        (["nowhere.py:f"], "nowhere.py: expected a Python file that exists"),
        (["{file}:number"], "a function of"),
        (["{file}:known_level", "--problem", "quadratics"], "quadratic"),
        (["{file}:known_level", "--difficulty", "simple"], "difficulty"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(icl, file, words, message):
    status, _, err = icl("posteriors", "score", *(word.format(file=file) for word in words))
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
