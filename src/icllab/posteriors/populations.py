"""Answers from populations and long chains: a committed table, which ``bench/reference_populations.py`` writes."""

from icllab.posteriors.answers import Answer
from icllab.posteriors.stored import population_table

BASIS = "Derived: docs/posteriors.md, Populations."


def population_answers(name: str, nbeta: float, gamma: float) -> dict[str, Answer]:
    """Level and variance of a problem at a setting of the table; nothing if the table lacks it."""
    for row in population_table().get(name, []):
        if (row["nbeta"], row["localization"]) == (nbeta, gamma):
            return {
                "level": Answer(row["level"], row["level_error"], BASIS),
                "variance": Answer(row["variance"], row["variance_error"], BASIS),
            }
    return {}
