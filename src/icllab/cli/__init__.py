"""The command ``icl``: run a claim, read its verdict, draw it, ask a closed form.

Every command computes a :class:`~icllab.cli.reports.Report`, which is printed once, at the end, on
stdout: as JSON or for people. Everything else goes to stderr. Nothing heavy is imported before a
command needs it, so that help and shell completion answer at once.
"""

from icllab.cli.entry import main
