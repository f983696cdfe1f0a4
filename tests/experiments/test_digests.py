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


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the library's sources that may be edited, and is what digests are taken of."""
    package = tmp_path_factory.mktemp("library") / "icllab"
    shutil.copytree(Path(icllab.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "_PACKAGE", package)
        digests.forget()
        yield package
    digests.forget()


@pytest.fixture(scope="module")
def digested(package, tmp_path_factory):
    """A function: the digest of a claim with a measurement, in a folder of its own, with other files beside it."""

    def digest(text=CLAIM, **beside):
        folder = tmp_path_factory.mktemp("claim")
        for name, content in {"measure": text, **beside}.items():
            (folder / f"{name}.py").write_text(content)
        return digests.measurement(folder / "measure.py")

    return digest


@pytest.fixture(scope="module")
def before(digested):
    """The digest of the claim over the library as it is."""
    return digested()


@pytest.fixture
def edit(package):
    """A function that replaces text in a file of the library until the test is over."""
    kept = {}

    def replace(file, old, new, count=-1):
        source = package / file
        text = source.read_text()
        assert old in text
        kept.setdefault(source, text)
        source.write_text(text.replace(old, new, count))
        digests.forget()

    yield replace
    for source, text in kept.items():
        source.write_text(text)
    digests.forget()


UNREACHED = [
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
]
REACHED = [
    ("theory/wishart.py", "return", "return 2 *"),
    ("core/grid.py", "np.stack", "np.asarray"),
    ("core/prompt.py", "class RegressionPrompt(", "class RegressionPrompt(object, "),
    ("training/fitting.py", "def fit(", "@decorated\ndef fit("),
    ("training/loop.py", "CAPACITY = ", "CAPACITY = 7 + "),
    ("tasks/regression_distributions.py", "return", "return 2 *"),
]


def test_new_names_words_and_what_is_not_reached_make_nothing_stale(before, edit, digested):
    """All of them at once: one that counted would make the claim stale."""
    for change in UNREACHED:
        edit(*change, count=1)
    assert digested() == before


@pytest.mark.parametrize(("file", "old", "new"), REACHED)
def test_what_is_reached_makes_it_stale_when_it_changes(file, old, new, before, edit, digested):
    edit(file, old, new)
    assert digested() != before


def test_comments_on_what_is_reached_make_nothing_stale(before, edit, digested):
    for file, _, _ in REACHED:
        edit(file, "\n\n\n", "\n\n\n# a comment\n")
    assert digested() == before


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
def test_of_a_measurement_its_reached_code_counts(old, new, stale, before, digested):
    assert old in CLAIM
    assert (digested(CLAIM.replace(old, new)) != before) == stale


def test_constants_of_a_claim_count_where_its_measurement_uses_them(digested):
    text = "from .claim import LEVEL\n\n\ndef measure(point, *, key):\n    return LEVEL\n"
    before = digested(text, claim="LEVEL = 1\nBOUND = 2\n")
    assert digested(text, claim="LEVEL = 1\nBOUND = 3\n") == before
    assert digested(text, claim="LEVEL = 2\nBOUND = 3\n") != before


def test_a_module_handed_about_counts_as_a_whole(edit, digested):
    text = "from icllab.theory import wishart\n\n\ndef measure(point, *, key):\n    return dir(wishart)\n"
    before = digested(text)
    edit("theory/wishart.py", "import numpy as np\n", "import numpy as np\n\nNEW = 1\n")
    assert digested(text) != before
