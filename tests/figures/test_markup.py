"""Formulas and docstrings as HTML."""

# ruff: noqa: RUF001 (Greek letters and quotation marks are meant)

import html
import re

import pytest

from icllab.core.axes import AXES, QUANTITIES
from icllab.figures.markup import formula, prose


def read(markup):
    return html.unescape(re.sub("<[^>]*>", "", markup))


@pytest.mark.parametrize(
    ("tex", "said"),
    [
        (r"n\beta", "nβ"),
        (r"\kappa", "κ"),
        (r"\ell = 5", "ℓ = 5"),
        (r"e_{\mathrm{ICL}}", "e<sub>ICL</sub>"),
        (r"n\beta/\gamma", "nβ/γ"),
        (r"d^2", "d<sup>2</sup>"),
        (r"w_\tau", "w<sub>τ</sub>"),
        (r"a_1 < b", "a<sub>1</sub> &lt; b"),
        (r"\hat\lambda", "λ\u0302"),
        (r"\log n", "log n"),
    ],
)
def test_a_formula_can_be_read_without_a_script(tex, said):
    assert formula(tex) == f'<span class="math" data-tex="{html.escape(tex)}">{said}</span>'


def test_no_shared_symbol_is_left_in_tex():
    for row in (*AXES.values(), *QUANTITIES.values()):
        assert not re.search(r"[\\{}]", read(formula(row.symbol))), row.symbol


def test_a_docstring_is_paragraphs_with_formulas_and_code():
    text = r"""First :math:`a < b` line,
    with ``code`` and :func:`~icllab.x`.

    .. math::
        x &= 1 \\
        y &= 2

    .. math:: z

    Args:
        x: Not shown.

    Source: [Lu24].
    """
    said = prose(text)
    assert said.count("<p>") == 3
    assert '<span class="math" data-tex="a &lt; b">a &lt; b</span>' in said
    assert "<code>code</code> and <code>icllab.x</code>." in said
    assert r'data-tex="\begin{aligned}x &amp;= 1 \\' in said
    assert '<span class="math" data-tex="z" data-display>z</span>' in said
    assert "Not shown" not in said
    assert "Lu24" not in said


def test_a_display_whose_formula_follows_a_blank_line():
    assert 'data-tex="x = 1" data-display' in prose("a\n\n.. math::\n\n    x = 1\n\nb")


def test_what_a_docstring_says_is_text():
    said = "<script>"
    assert "<script>" not in prose(f"{said} ``{said}`` :math:`{said}`\n\n.. math:: {said}")
