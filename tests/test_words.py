"""The field's words: names, messages, labels, docstrings and pages have none of those that only we would use."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = {"changelog.md", "equations.md", "gallery.md", "papers.md"}
PAGES = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "peers" / "template.md"]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "bench").glob("*.py")]
INSTEAD = {
    r"(share|fraction) of right answers": "accuracy",
    r"wrong worlds?|--world": "negative control",
    r"rooms|house": "subpackage, project",
    r"knows? by heart|looks it up": "in-weights, in-context learning",
    r"recognisers?": "task recognition",
    r"one who knows": "oracle",
    r"left unexplained": "fraction of variance unexplained",
    r"trivial alternatives": "baselines",
    r"free numbers": "fitted parameters",
    r"plain descent": "gradient descent, SGD",
    r"loss_drop": "loss at one length minus loss at another",
    r"graft(s|ed)?": "weights transplanted",
    r"prompt perceptron": "MLP baseline",
    r"sampled worlds?|drawn curves?": "simulated control, synthetic curve",
    r"(?<!power )(?<!power-)(?<!scaling )(?<!Pastur )laws? of": "distribution of",
    r"gradient is dear|dearly": "expensive",
    r"eagerly": "a noun",
}
_spec = importlib.util.spec_from_file_location("english", ROOT / "docs" / "english.py")
english = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(english)
PLANTED = {
    "negated noun": "A point that is no minimum is refused.",
    "so many": "Draw so many prompts.",
    "what for a noun": "Start from what is there.",
    "of which, of whom": "Four runs, of which one ends.",
    "that of, those of": "The error is that of the limit.",
    "one who, they who": "Prefer the one that converged.",
    "dangling so": "Losses fall. So do errors.",
}
WORDS = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(INSTEAD)), re.IGNORECASE)


def test_the_words_are_the_fields():
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}": list(INSTEAD.values())[int((match.lastgroup or "w0")[1:])]
        for path in [*PAGES, *SOURCES]
        for match in WORDS.finditer(path.read_text("utf-8"))
    }
    assert not found


def test_descriptions_of_arguments_begin_with_what_they_are():
    """With a noun phrase or a verb."""
    pattern = re.compile(r"^ {8}\*{0,2}\w+: (?:As )?[Oo]f .*$", re.MULTILINE)
    assert not {str(path): found for path in SOURCES if (found := pattern.findall(path.read_text("utf-8")))}


def test_no_argument_is_named_law():
    """A distribution is named so; what claims measure keeps its source."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in SOURCES if "claims" not in path.parts}
    arguments = [
        (path, node.arg) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.arg)
    ]
    assert not [path for path, name in arguments if name == "law"]


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize(
    "text", ['"""{}"""', 'def f():\n    """{}\n\n    More.\n    """', 'raise ValueError(f"{{x}}: {}")']
)
def test_a_sentence_to_decode_is_counted_in_code(kind, text, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(text.format(PLANTED[kind]))
    assert [matched for _, _, matched, _ in english.matches(tmp_path)] == [[kind]]


def test_each_line_of_a_page_is_counted_once_and_code_is_not(tmp_path):
    lines = ["# Title", *PLANTED.values(), PLANTED["so many"] + " " + PLANTED["what for a noun"]]
    (tmp_path / "page.md").write_text("\n".join([*lines, "```", *PLANTED.values(), "```", "So do errors."]))
    assert [line for _, line, _, _ in english.matches(tmp_path)] == [*range(2, 10), 19]


def test_an_opener_is_counted_in_the_first_line_of_a_docstring_alone(tmp_path):
    text = "Whether the chains agree."
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "module.py").write_text(
        f'"""Return a verdict.\n\n{text} So do errors.\n"""\n\nclass Verdict:\n    """{text}"""\n'
    )
    assert [(path.name, line, matched) for path, line, matched, _ in english.matches(tmp_path)] == [
        ("module.py", 6, ["opener"])
    ]


def test_what_git_ignores_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    (tmp_path / ".gitignore").write_text("docs/api/\ndocs/gallery.md\n")
    for name in ("docs/api/core.md", "docs/gallery.md", "docs/page.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PLANTED["so many"])
    assert [path.name for path, *_ in english.matches(tmp_path / "docs")] == ["page.md"]


def test_the_count_may_only_fall():
    assert english.verdict(7, 7) == ""
    assert "at most 7 sentences, found 8" in english.verdict(8, 7)
    assert "set LIMIT = 6" in english.verdict(6, 7)
