"""The sections of an examination, in the order in which a report has them."""

from icllab.examination.section import Section
from icllab.examination.sections import (
    algorithm,
    contract,
    degeneracy,
    elsewhere,
    heads,
    in_context,
    memorising,
    theory,
    transitions,
)

MODULES = (contract, in_context, algorithm, memorising, elsewhere, theory, heads, degeneracy, transitions)
SECTIONS: dict[str, Section] = {module.SECTION.name: module.SECTION for module in MODULES}
