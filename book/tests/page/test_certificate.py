"""A certificate as a page: it says what its content says, loads nothing, and prints on two sheets."""

import copy
import html
import re
import shutil
import subprocess

import pytest

from icllab.lab import certificate
from icllab.lab.evidence import evidence_of
from icllab.page import certificate as pages

PNG = b"\x89PNG of the figure"


@pytest.fixture(scope="module")
def content():
    """A certificate of a recorded claim."""
    whole = certificate.certificate(evidence_of("induction/abrupt_learning"))
    return certificate.sealed({**whole, "issued": {**whole["issued"], "figure": pages.figure_digest(PNG)}})


def test_the_page_has_every_finding_control_digest_and_answer(content):
    text = pages.html(content, PNG)
    text = re.sub(r"</?code[^>]*>", "", text)
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
    statement = content["statement"]
    for part in (statement["sentence"], statement["conditions"], content["digest"][:16], "seeds 26 to 41"):
        assert part in words
    for row in content["findings"].values():
        assert row["what"] in words
        assert f"{row['predicted']:.4g}" in words
    for name, control in content["controls"].items():
        assert name in words
        assert control["meaning"] in words
        assert set(re.sub(r"\[.*?\]", "", " ".join(control["falsifies"])).split()) <= set(re.findall(r"\w+", words))
    for digest in (*content["digests"]["data"].values(), *content["digests"]["sources"].values()):
        assert digest[:16] in words
    answers = [answer for items in content["checklists"].values() for answer in items.values()]
    assert words.count("open: for the authors") == answers.count(None)
    assert all(answer.replace("`", "") in words for answer in answers if answer is not None)
    assert f"{content['measurement']['core_hours_at_most']:g} core-hours" in words


def test_the_page_loads_nothing(content):
    text = pages.html(content, PNG)
    assert re.findall(r'(?:src|href)="([^",]*)', text) == ["data:image/png;base64"]
    assert "<script" not in text
    assert not re.search(r"url\(|@import", text)
    assert "default-src &#x27;none&#x27;" in text


def test_an_edited_page_is_found(content):
    text = pages.html(content, PNG)
    assert pages.is_of(text, content)
    digits = [match.start() for match in re.finditer(r"\d", text)]
    for i in digits[:: len(digits) // 20]:
        edited = text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :]
        assert not pages.is_of(edited, content), text[i - 20 : i + 20]
    assert not pages.is_of(pages.html(content, b"another figure"), content)
    assert not pages.is_of(pages.html(content, None), content)
    assert not pages.is_of(text, {**content, "issued": 3})


def test_the_type_on_paper_shrinks_with_the_text(content):
    sizes = []
    for count in (0, 5, 15, 150):
        more = copy.deepcopy(content)
        more["statement"]["conditions"] = "word " * 100 * count
        sizes.append(float(re.search(r"main { font-size: ([\d.]+)pt", pages.html(more, PNG))[1]))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3] == 4.5


def test_text_of_a_claim_is_no_markup(content):
    other = copy.deepcopy(content)
    other["statement"]["sentence"] = "<b onclick=x>1 < 2</b>"
    text = pages.html(other, None)
    assert "<b onclick" not in text
    assert "&lt;b onclick=x&gt;1 &lt; 2&lt;/b&gt;" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim",
    ["asymptotics/double_descent", "induction/abrupt_learning", "singular/effective_dimension_across_the_cliff"],
)
@pytest.mark.parametrize("paper", ["letter", "A4"])
def test_a_certificate_prints_on_two_pages(claim, paper, tmp_path):
    if shutil.which("chromium") is None or shutil.which("pdfinfo") is None:
        pytest.skip("needs chromium and pdfinfo")
    from icllab.cli.certifying import certify

    page, pdf = tmp_path / "c.html", tmp_path / "c.pdf"
    certify(claim, to=page, size=None, out=None, claims=None)
    # The policy allows the style sheet as it is; here it gets a size of paper.
    text = page.read_text("utf-8").replace("@page {", f"@page {{ size: {paper};").replace("Content-Security", "No")
    page.write_text(text)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    subprocess.run([*command, f"--print-to-pdf={pdf}", f"file://{page}"], check=True, capture_output=True)
    answer = subprocess.run(["pdfinfo", pdf], check=True, capture_output=True, text=True).stdout
    assert re.search(r"^Pages: +2$", answer, re.MULTILINE)
