"""A contract for import-linter: no claim imports another; what a subject's claims share has a leading underscore."""

from importlinter import Contract, ContractCheck, fields, output

DEPTH = len(["iclbook", "claims", "subject", "finding"])


def claim_of(module, container):
    """The claim that a module belongs to; None of what claims share."""
    parts = module.split(".")
    inside = module.startswith(f"{container}.") and len(parts) >= DEPTH and not parts[DEPTH - 1].startswith("_")
    return ".".join(parts[:DEPTH]) if inside else None


class ClaimsApart(Contract):
    """Imports between claims below ``container``, and from what is shared into a claim, are broken."""

    container = fields.StringField()

    def check(self, graph, verbose):
        found = []
        for module in graph.find_descendants(self.container):
            for imported in graph.find_modules_directly_imported_by(module):
                theirs = claim_of(imported, self.container)
                if theirs is not None and theirs != claim_of(module, self.container):
                    found.append((module, imported))
        return ContractCheck(kept=not found, metadata={"found": sorted(found)})

    def render_broken_contract(self, check):
        for module, imported in check.metadata["found"]:
            output.print_error(f"{module} imports {imported}, which belongs to another claim")
