"""The module of version 0.3 whose names are in :mod:`icllab.lab.evidence`."""

from icllab.core.lazy import renamed

__getattr__ = renamed(
    __name__, {"basis_of": "icllab.lab.evidence.evidence_of", "Basis": "icllab.lab.evidence.Evidence"}
)
