"""Questions that tests put to a posterior, from the arguments of both."""

from icllab.diagnostics import LocalPosterior

FIELDS = ("data", "n", "nbeta", "localization", "weights", "prior")


def ask(question, loss, at, *more, **options):
    """Call a question with the posterior that the options describe, and the other options."""
    fields = {name: options.pop(name) for name in FIELDS if name in options}
    return question(LocalPosterior.from_function(loss, at, **fields), *more, **options)
