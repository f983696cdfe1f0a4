"""A report is one file that asks nobody for anything, and says what the results say."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import pytest
from faults.processes import CLAIM, CLAIMS, STORE, inside, strictly
from PIL import Image

from icllab.page import report
from icllab.page.cards import Evidence

RECORDED = "asymptotics/double_descent"


@pytest.fixture
def icl(capfd):
    """``icl words...``: its status, stdout and stderr."""
    from faults.processes import ICL

    return lambda *words: inside(capfd, [*ICL, *map(str, words)])


class Addresses(HTMLParser):
    """Every address of a page, and the elements that have none but are not allowed to be there."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        for name, value in attributes:
            assert not name.startswith("on")
            assert name != "style"
            if name in ("src", "href", "srcset", "data", "poster"):
                self.found.append(value)


def test_a_report_needs_nothing_else(finished, tmp_path, icl):
    to = tmp_path / "new" / "r.html"
    status, out, _ = icl("report", CLAIM, RECORDED, "-o", to, "--out", finished, "--claims", CLAIMS)
    assert status == 0
    assert str(to) in out
    text = to.read_text("utf-8")
    addresses = Addresses(text).found
    images = [one for one in addresses if one.startswith("data:image/png;base64,")]
    assert len(images) == 2
    drawn = Image.open(io.BytesIO(base64.b64decode(images[0].partition(",")[2])))
    assert drawn.size == (160, 160)  # the claim draws one inch by itself
    others = [one for one in addresses if one not in images]
    pdf = "r-claims-steady.pdf"  # of results here; a recorded figure is a picture alone
    assert set(others) == {"#claims-steady", "#asymptotics-double_descent", pdf}
    assert (to.parent / pdf).read_bytes().startswith(b"%PDF")
    assert "<figcaption>Results of this machine at size small.</figcaption>" in text
    assert "<figcaption>Error on fresh tasks <span" in text
    assert sorted(path.name for path in to.parent.iterdir()) == [pdf, "r.html"]
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src &#x27;none&#x27;" in text


def test_the_policy_allows_the_style_that_is_there(finished):
    import hashlib
    import html

    text = report.html([report.section(CLAIM, finished, CLAIMS)])
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert f"style-src 'sha256-{digest}'" in html.unescape(policy)
    assert "</" not in style


def test_it_says_what_results_say_and_what_the_record_says(finished, tmp_path, icl):
    to = tmp_path / "r.html"
    status, out, _ = icl("report", CLAIM, RECORDED, "-o", to, "--out", finished, "--claims", CLAIMS, "--json")
    answer = strictly(out)
    assert (status, answer["verdicts"]) == (0, {CLAIM: "holds", RECORDED: "holds"})
    assert answer["figures"] == [str(tmp_path / "r-claims-steady.pdf")]
    text = to.read_text("utf-8")
    assert len(re.findall(r"error, at <abbr[^>]*>dim</abbr> \d+: <b>\S+ ± \S+</b>, predicted 0.5", text)) == 5
    assert "small, run here" in text
    assert "small, recorded" in text
    assert text.count('class="glossary"') == 2
    assert '<span class="math" data-tex="\\tau">τ</span></td><td>tau</td>' in text  # readable without a script
    assert "arXiv:2405.11751" in text  # the references


def test_its_status_is_the_worst_of_the_verdicts(results, tmp_path, icl):
    to = tmp_path / "r.html"

    def status(*more):
        return icl("report", *more, CLAIM, "-o", to, "--out", results, "--claims", CLAIMS)[0]

    assert status() == 0
    configuration = results / STORE / "configuration.json"
    configuration.write_text(configuration.read_text().replace('"key": 0', '"key": 7'))
    assert status() == 4  # not the configuration of the claim
    assert 'class="fault"' in to.read_text("utf-8")
    shutil.rmtree(results / STORE)
    assert status() == 3
    assert "not yet run" in to.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected at least one claim, got none"),
        (["asymptotics/double_descant"], "did you mean 'asymptotics/double_descent'?"),
        ([CLAIM, "-o", "r.pdf"], "-o: expected a file that ends in .html, got 'r.pdf'"),
    ],
)
def test_bad_input_is_one_line(words, said, icl):
    status, _, err = icl("report", *words, "--claims", CLAIMS)
    assert status == 2
    assert said in err


def test_what_a_claim_says_is_text():
    from icllab.lab.records import Card

    said = "</style><script>alert(1)</script>"
    card = Card(said, said, said, (), ("small",), {said: said}, {})
    text = report.html([report.Section(card, (Evidence(size="small", local=True, fault=said),))] * 2, [said, None])
    assert "<script>" not in text
    assert text.count("</style>") == 1


def test_a_page_offers_the_same_file(page):
    answer = page.get(f"/api/claims/{CLAIM}/report.html")
    assert answer.headers["content-disposition"] == 'attachment; filename="claims-steady.html"'
    assert Addresses(answer.text).found
    assert "small, run here" in answer.text
