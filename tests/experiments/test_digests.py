"""Stale means stale: a changed formula marks the claims that reach it, and words and new names mark none."""

import shutil
from pathlib import Path

import pytest

import icllab
from icllab.experiments import digests

CLAIM = '''
"""What is measured."""
from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.theory import wishart
import icllab as icl

SCALE = 2.0
OTHER = 3.0


def unused():
    return OTHER


def helper(x):
    """Words."""
    return SCALE * x


def measure(point, *, key):
    """Measure it."""
    from icllab.tasks import LinearRegression
    task = LinearRegression.from_scaling(dim=point.dim, key=key)
    icl.fit(None, task)
    return tabulated(lambda seed: helper(wishart.stieltjes(1.0, seed)), seed=point.seed)
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of the library's sources that may be edited, and a function that digests a claim in it."""
    package = tmp_path / "icllab"
    shutil.copytree(Path(icllab.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digests, "_PACKAGE", package)
    claim = tmp_path / "measure.py"

    def digest(text=CLAIM):
        digests.forget()
        claim.write_text(text)
        return digests.measurement(claim)

    yield package, digest
    digests.forget()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("theory/wishart.py", "import numpy as np\n", 'import numpy as np\n\n\ndef another():\n    """New."""\n'),
        ("core/grid.py", "def batched(", "NEW = 1\n\n\ndef batched("),
        ("core/axes.py", "AXES = _table(", 'AXES = _table(\n    Axis("mood", "m", "mood"),'),
        ("core/references.bib", "@", "@misc{New26,\n  author = {A},\n  title = {T},\n  year = {2026},\n}\n\n@"),
        ("models/__init__.py", '"""', '"""More words. '),
        ("figures/style.py", "import", "import math\nimport"),
        ("cli/entry.py", "import", "import math\nimport"),
        ("experiments/checks.py", "SIGMAS = 3.0", "SIGMAS = 4.0"),
        ("diagnostics/curves/survival.py", "import", "import math\nimport"),
        ("models/reduced/fitting.py", "return", "return 2 *"),  # imported, but not called
    ],
)
def test_new_names_words_and_what_is_not_reached_make_nothing_stale(file, old, new, library):
    package, digest = library
    before = digest()
    source = package / file
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new, 1))
    assert digest() == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("theory/wishart.py", "return", "return 2 *"),
        ("core/grid.py", "np.stack", "np.asarray"),
        ("core/prompt.py", "class RegressionPrompt(", "class RegressionPrompt(object, "),
        ("training/fitting.py", "def fit(", "@decorated\ndef fit("),
        ("training/loop.py", "CAPACITY = ", "CAPACITY = 7 + "),
        ("tasks/regression_distributions.py", "return", "return 2 *"),
    ],
)
def test_what_is_reached_makes_it_stale_when_it_changes(file, old, new, library):
    package, digest = library
    before = digest()
    source = package / file
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    assert digest() != before
    source.write_text(text + "\n# a comment\n")
    assert digest() == before


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ('"""Measure it."""', '"""Measure it well."""', False),
        ("SCALE = 2.0", "SCALE = 2.5  # larger", True),
        ("SCALE = 2.0", "SCALE = 2.0  # twice", False),
        ("OTHER = 3.0", "OTHER = 4.0", False),
        ("return OTHER", "return 2 * OTHER", False),
        ("return SCALE * x", "return SCALE + x", True),
        ('    """Words."""\n', "", False),
        ("seed=point.seed", "seed=point.seed[:1]", True),
        ("from icllab.models import reduced\n", "", False),
    ],
)
def test_of_a_measurement_its_reached_code_counts(old, new, stale, library):
    _, digest = library
    assert old in CLAIM
    assert (digest(CLAIM.replace(old, new)) != digest()) == stale


def test_constants_of_a_claim_count_where_its_measurement_uses_them(library, tmp_path):
    _, digest = library
    text = "from .claim import LEVEL\n\n\ndef measure(point, *, key):\n    return LEVEL\n"
    claim = tmp_path / "claim.py"
    claim.write_text("LEVEL = 1\nBOUND = 2\n")
    before = digest(text)
    claim.write_text("LEVEL = 1\nBOUND = 3\n")
    assert digest(text) == before
    claim.write_text("LEVEL = 2\nBOUND = 3\n")
    assert digest(text) != before


def test_a_module_handed_about_counts_as_a_whole(library):
    package, digest = library
    text = "from icllab.theory import wishart\n\n\ndef measure(point, *, key):\n    return dir(wishart)\n"
    before = digest(text)
    source = package / "theory" / "wishart.py"
    source.write_text(source.read_text() + "\n\nNEW = 1\n")
    assert digest(text) != before
