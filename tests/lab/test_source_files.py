"""The files that a certificate has digests of."""

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


def test_names_are_those_that_a_file_reads(tmp_path):
    file = tmp_path / "claim.py"
    file.write_text(
        "import numpy as np\nimport icllab.theory\nfrom icllab.lab import checks as c\n"
        "def f(x):\n    return c.agrees(np.linalg.norm(x)) or x.c.near\n"
    )
    names = source_files.names_used([file])
    assert {"icllab.lab.checks", "icllab.lab.checks.agrees", "numpy.linalg.norm", "icllab.theory"} <= names
    assert not any(name.endswith("near") for name in names)
