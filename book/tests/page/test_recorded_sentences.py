"""Every finding of the book's records reads as a sentence, and every abbreviation in it is explained."""

# ruff: noqa: RUF001 (Greek letters are meant)

import re

from page.test_sentences import RECORDS, ROWS, read

from icllab.page import catalogue, sentences


def test_every_recorded_finding_is_a_sentence():
    assert len(ROWS) > 1000
    for row in ROWS:
        text = read(row)
        assert "[" not in text.replace("[nats]", ""), text
        assert not re.search(r"\w=\w+$", text), text
        assert text.endswith(("met", ")")) or "predicted" in text, text
        for value in re.split(r"(?:^|,)[^\s,=]+=", row["id"].partition("[")[2].removesuffix("]"))[1:]:
            assert value in text.replace("×10", "e+0") or "e" in value, text


def test_every_abbreviation_of_the_records_is_explained():
    texts = [row["what"] for row in ROWS]
    texts += [record["claim"][name] for record in RECORDS.values() for name in ("sentence", "conditions")]
    plural = {
        word.removesuffix("s") for text in texts for word in re.findall(r"\b[A-Za-z]*[A-Z][A-Z]+\w*?(?=\d*\b)", text)
    }
    assert plural - {"BAh", "SmolLM"} <= set(sentences.ABBREVIATIONS)
    said = sentences.abbreviated("GD++ and GD of MLPs, ICL's <error>")
    assert re.findall(r'<abbr title="([^":;]*)[^"]*">([^<]*)</abbr>', said)[0][1] == "GD++"
    assert [name for name in ("GD++", "GD", "MLP", "ICL") if f">{name}</abbr>" in said] == ["GD++", "GD", "MLP", "ICL"]
    assert "&lt;error&gt;" in said
    assert "<abbr" not in sentences.abbreviated("GDP, SGDX")


def test_a_glossary_has_symbols_units_and_abbreviations():
    symbols = catalogue.symbols("routing/susceptibility_peaks")
    assert [row.name for row in symbols][:2] == ["reach", "nbeta"]
    text = sentences.glossary(symbols, "ICL error")
    assert r'<td><span class="math" data-tex="n\beta/\gamma">nβ/γ</span></td><td>reach</td>' in text
    assert "<td>mean loss of the posterior</td><td>nats</td>" in text
    assert "<td>ICL</td><td>in-context learning; " in text
    assert "GD++" not in text
