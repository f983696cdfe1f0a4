"""The files that a certificate has digests of."""

import hashlib

import numpy as np
from faults.processes import CLAIM, CLAIMS

from icllab.core.files import source_text
from icllab.lab import registry, source_files

RECORDED = "asymptotics/double_descent"


def test_sources_are_the_files_that_the_verdict_rests_on(tmp_path):
    names = set(source_files.source_files(RECORDED))
    assert names == {f"{RECORDED}/claim.py", f"{RECORDED}/measure.py"}
    assert set(source_files.source_files(CLAIM, CLAIMS)) == {f"{CLAIM}.py"}
    (tmp_path / "a.py").write_bytes(b"x = 1\r\n")
    (tmp_path / "b.py").write_bytes(b"x = 1\n")
    (tmp_path / "c.py").write_bytes(b"x = 2\n")
    first, second, third = source_files.digests({name: tmp_path / f"{name}.py" for name in "abc"}).values()
    assert first == second != third


def test_a_shared_module_is_listed_where_the_text_of_a_file_names_it(tmp_path):
    """Through other modules too; a function of the same name is not a module."""
    name = f"_shared{np.random.default_rng().integers(1000)}"
    files = {
        "claim.py": f"from subject import {name}\nclaim = _other(1)\n",
        "measure.py": "def _other(x):\n    return x\n",
        "__init__.py": "",
        f"../{name}.py": "import subject._deep as deep\n",
        "../_deep.py": f"from subject import {name}\n",
        "../_other.py": "X = 1\n",
        "../unlisted.py": "from subject import _other\n",
    }
    folder = tmp_path / "subject" / "finding"
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    sources = source_files.source_files("subject/finding", tmp_path)
    finding = ["subject/finding/claim.py", "subject/finding/measure.py"]
    assert list(sources) == sorted(["subject/_deep.py", f"subject/{name}.py", *finding])
    assert all(tmp_path.resolve() / name == path for name, path in sources.items())


CODE = '''"""What is measured."""

VERSION = 1  # counts up


def measure(point, *, key):
    """Return a number.

    A line.
    """
    text = "# no comment"
    """Not used."""
    return {"loss": ((), len(text))}  # axes and values
'''
SAME = [
    ("counts up", "counts on"),
    ('"""What is measured."""\n', ""),
    ("A line.", "Two lines.\n    And another."),
    ("  # axes and values", ""),
    ("\n\n\ndef", "\n\ndef"),
]
OTHER = [("VERSION = 1", "VERSION = 2"), ("# no comment", "# a comment"), ("len(text)", "len(text) + 1"), ("()", "[]")]


def test_the_digest_of_a_measurement_is_that_of_its_code():
    """Words of docstrings and comments leave it; and a record that states the digest of the whole text opens."""
    code = source_files.code(CODE)
    assert "counts" not in code
    assert "Return a number" not in code
    assert '"# no comment"' in code
    for changes, equal in ((SAME, True), (OTHER, False)):
        for old, new in changes:
            assert CODE.count(old) == 1 or old == "()"
            assert (source_files.code(CODE.replace(old, new)) == code) is equal, old
    assert source_files.code("(x for x in") == "(x for x in"  # part of a lambda


def test_data_of_either_digest_are_those_of_the_measurement():
    claim = registry.load(RECORDED)
    text = source_text(registry.measure_file(registry.file(RECORDED)))
    whole = hashlib.sha256(text.encode()).hexdigest()
    assert whole != source_files.measure_digest(claim)
    for digest in ("", whole, source_files.measure_digest(claim)):
        assert source_files.is_measured_by(digest, claim)
    assert not source_files.is_measured_by("0" * 64, claim)
