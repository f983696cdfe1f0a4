"""The field's words: names, messages, labels, docstrings and pages have none of those that only we would use."""

import ast
import re
from pathlib import Path

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
