"""A user's network as the subject of every question: sections with a verdict, a number, its error and its null.

A section asks one question. It measures a Dataset, and a pure function of that Dataset gives the verdict. An
examination is the sections of one subject at one size of the samples.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.examination.examining import Examination, examine
    from icllab.examination.section import Finding, Section
    from icllab.examination.subject import Subject

__all__: list[str] = []
__getattr__, __dir__ = attach(__name__)
