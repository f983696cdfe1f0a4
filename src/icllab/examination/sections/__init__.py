"""The sections of an examination, in the order in which a report has them."""

from icllab.examination.section import Section
from icllab.examination.sections import (
    algorithm,
    context,
    contract,
    degeneracy,
    elsewhere,
    few_shot,
    heads,
    in_context,
    induction_heads,
    memorising,
    repeats,
    text,
    theory,
    transitions,
)

MODULES = (
    contract, in_context, algorithm, memorising, elsewhere, theory, heads, degeneracy, transitions,
    text, repeats, induction_heads, few_shot, context,
)  # fmt: skip
SECTIONS: dict[str, Section] = {module.SECTION.name: module.SECTION for module in MODULES}
