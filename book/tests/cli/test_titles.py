"""One line for every claim of the book."""

import re

from icllab.lab import registry


def test_every_claim_has_a_plain_line_of_its_own_within_80_columns(icl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = icl("list", "--out", "nowhere")[1].splitlines()[1:]
    assert len(lines) == len(registry.claims()) == 85
    assert max(map(len, lines)) <= 80
    titles = [
        re.split("holds|fails|undecided|not recorded", line.replace(", stale", ""), maxsplit=1)[1].strip()
        for line in lines
    ]
    assert len({*titles}) == len(titles)
    for title in titles:
        assert len(title.split()) >= 3
        cut = "" if any("not recorded" in line and title in line for line in lines) else "…"
        assert not re.search(rf"[{cut}`_$\\]|kappa|tau|alpha|LLC|IDG", title)
