"""The files that a certificate has digests of."""

import numpy as np
from faults.processes import CLAIM, CLAIMS

from icllab.lab import source_files

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
