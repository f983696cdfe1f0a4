"""Every view of a result says the same verdict, of the same findings and conditions."""

import html
import json
import re

import pytest
from faults.processes import CLAIM, CLAIMS, ICL, STORE, inside, run_command, strictly

import icllab as icl
from icllab.lab import registry

ALL = registry.claims
COUNTS = re.compile(
    r"(holds|fails|undecided)\W((?!holds|fails|undecided).)*?"
    r"(\d+) of (\d+) findings hold(?:; (\d+) of (\d+) conditions for judging are met)?",
    re.IGNORECASE,
)


def worded(text):
    """Verdict and counts where a text first has both."""
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
    verdict, _, *numbers = COUNTS.search(text).groups(default="0")
    return verdict.lower(), *map(int, numbers)


def plain(verdict, counts):
    """Verdict and counts in JSON."""
    findings, conditions = counts["findings"], counts["conditions"]
    return verdict, findings["hold"], findings["of"], conditions["met"], conditions["of"]


def by_hand(answer):
    """Verdict and counts by the findings themselves."""
    kinds = [[row["outcome"] for row in answer["findings"] if row["about"] == about] for about in ("claim", "data")]
    outcomes = {*kinds[0], *kinds[1]}
    verdict = next((name for name in ("fails", "undecided") if name in outcomes), "holds")
    return verdict, *(number for rows in kinds for number in (rows.count("holds"), len(rows)))


@pytest.fixture
def views(capfd, tmp_path, opened):
    """Function from a claim and options to view -> verdict and counts; the first are by hand."""

    def icl_(*words):
        return inside(capfd, [*ICL, *map(str, words)])[1]

    def views(name, *, control=None, recorded=False, claims=None):
        places = ["--out", tmp_path, *(["--claims", claims] if claims else [])]
        which = [*(["--control", control] if control else []), *(["--recorded"] if recorded else [])]
        (answer,) = strictly(icl_("check", name, *which, *places, "--json"))["claims"]
        verdict = icl.check(name, out=tmp_path, control=control, claims=claims, recorded=recorded)
        (row,) = strictly(icl_("list", name, *places, "--json"))["claims"]
        entry = (
            [*row["record"].values()][-1] if recorded else next(r for r in row["results"] if r["control"] == control)
        )
        long = icl_("list", name, "--long", *places)
        under = rf"results\s+small(?= under {control}:)" if control else r"record" if recorded else r"results\s+small:"
        card = opened(tmp_path, claims=claims).get(f"/api/claims/{name}").json()["html"]
        summaries = re.findall("<summary>(.*?)</summary>", card)
        views = {
            "by hand": by_hand(answer),
            "check": worded(icl_("check", name, *which, *places).partition("\n  finding ")[2].rpartition("\n\n")[2]),
            "check --json": plain(answer["verdict"], answer["counts"]),
            "Python": worded(repr(verdict)),
            "notebook": worded(verdict._repr_html_()),
            "list --json": plain(entry["verdict"], entry["counts"]),
            "list --long": worded(re.split(under, long, maxsplit=1)[1]),
            "page": worded(next(s for s in summaries if (f"under {control}" in s if control else "under" not in s))),
        }
        if control is None:
            file = tmp_path / "report.html"
            report = ["report", name, *places, "-o", file]
            views["report"] = worded(icl_(*report))
            answer = strictly(icl_(*report, "--json"))
            views["report --json"] = plain(answer["verdicts"][name], answer["counts"][name])
            summaries = re.findall("<summary>(.*?findings hold.*?)</summary>", file.read_text("utf-8"))
            views["report.html"] = worded(summaries[-1])
        return views

    return views


@pytest.mark.parametrize(
    ("options", "verdict"),
    [([], "holds"), (["--control", "wrong"], "fails"), (["--seeds", "1"], "undecided")],
    ids=["holds", "fails under a control", "undecided"],
)
def test_views_of_a_run_agree(options, verdict, views, tmp_path, capfd):
    out = inside(capfd, run_command(tmp_path, *options))[1]
    control = options[1] if "--control" in options else None
    answers = views(CLAIM, control=control, claims=CLAIMS)
    answers["run"] = worded(out.rpartition("\n\n")[2])
    answer = strictly(inside(capfd, run_command(tmp_path, *options, "--json"))[1])
    answers["run --json"] = plain(answer["verdict"], answer["counts"])
    assert answers == dict.fromkeys(answers, (verdict, 5 * (verdict == "holds"), 5, 0, 0))


def test_a_verdict_that_an_earlier_version_kept_is_read_by_its_findings(finished, tmp_path, opened, capfd, results):
    """Over an undecided finding it is undecided, and at smoke there is none."""
    path = results / STORE / "verdict.json"
    entry = json.loads(path.read_text())
    entry["findings"][0]["outcome"] = "undecided"
    assert entry["verdict"] == "holds"

    def verdicts():
        page = opened(results)
        tile = next(row for row in page.get("/api/claims").json()["claims"] if row["claim"] == CLAIM)
        words = [*ICL, "list", CLAIM, "--claims", str(CLAIMS), "--out", str(results), "--json"]
        (row,) = strictly(inside(capfd, words)[1])["claims"]
        return tile["verdict"], row["results"][0]["verdict"]

    path.write_text(json.dumps(entry))
    assert verdicts() == ("undecided", "undecided")
    path.write_text(json.dumps(entry | {"size": "smoke"}))
    assert verdicts() == ("none", None)
    path.write_text(json.dumps(entry | {"findings": [{"outcome": "maybe"}]}))
    status, _, err = inside(capfd, [*ICL, "list", CLAIM, "--claims", str(CLAIMS), "--out", str(results)])
    assert (status, "expected a verdict with its findings" in err) == (4, True)


def test_smoke_has_no_verdict_of_a_record_either():
    for size in ("smoke", "small"):
        verdict = icl.check("descent/best_step", size, recorded=True)
        assert (verdict.outcome == "holds") == (size == "small")
        assert bool(verdict.findings) == (size == "small")
