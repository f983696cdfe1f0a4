"""A transformer of one layer, trained to its minimum on all prompts of a few tokens; the trained weights are stored."""

import numpy as np

from icllab.posteriors.answers import coefficient_answers
from icllab.posteriors.crossings import rotation
from icllab.posteriors.populations import population_answers
from icllab.posteriors.problems import Draft, family
from icllab.posteriors.stored import trained_weights
from icllab.theory import learning_coefficients as exact

ORBIT = "Derived: docs/posteriors.md, A trained transformer."
NOISE, DECAY = 0.2, 2e-3  # share of wrong answers, and twice the decay's coefficient
SIZES = {"transformer_small": (3, 3, 3), "transformer_wide": (4, 3, 4)}  # symbols, length, width


def transformer(xp, w, arrays, rows, sizes):
    """Cross-entropy of the symbol at a place that the last symbol names, over all prompts, with weight decay."""
    symbols, length, width = sizes
    ends, begin, parts = (symbols, length, width, width, width), 0, []
    for rows_of, columns in zip(ends, (width, width, width, symbols, symbols), strict=True):
        parts.append(w[begin : begin + rows_of * columns].reshape(rows_of, columns))
        begin += rows_of * columns
    embedding, place, match, value, direct = parts
    x = arrays["tokens"] @ embedding + place[None]  # [prompt, position, width]
    scores = xp.einsum("pi,ij,ptj->pt", x[:, -1], match, x)
    weights = xp.exp(scores - xp.log(xp.sum(xp.exp(scores), 1))[:, None])
    logits = xp.einsum("pt,ptj->pj", weights, x) @ value + x[:, -1] @ direct
    logs = logits - xp.log(xp.sum(xp.exp(logits), 1))[:, None]
    return -xp.sum(arrays["answers"] * logs) / len(arrays["answers"]) + arrays["decay"][0] * xp.sum(w**2) / 2


def arrays_of(sizes: tuple[int, int, int], order: np.ndarray) -> dict[str, np.ndarray]:
    """All prompts and the distribution of their answers, with the symbols in some order."""
    symbols, length, _ = sizes
    prompts = np.indices((symbols,) * length).reshape(length, -1).T
    right = prompts[np.arange(len(prompts)), prompts[:, -1] % (length - 1)]
    answers = (1 - NOISE) * np.eye(symbols)[right] + NOISE / symbols
    turned = np.eye(symbols)[order]
    return {"tokens": turned[prompts], "answers": answers @ turned, "decay": np.array([DECAY])}


def turned_weights(w: np.ndarray, sizes: tuple[int, int, int], order: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """The same function with the symbols in another order and the width in other coordinates."""
    symbols, length, width = sizes
    shapes = ((symbols, width), (length, width), (width, width), (width, symbols), (width, symbols))
    ends = np.cumsum([0, *(a * b for a, b in shapes)])
    embedding, place, match, value, direct = (w[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(shapes))
    back = np.argsort(order)
    parts = (
        embedding[back] @ turn,
        place @ turn,
        turn.T @ match @ turn,
        turn.T @ value[:, back],
        turn.T @ direct[:, back],
    )
    return np.concatenate([part.ravel() for part in parts])


def _transformer(name, sizes):
    @family(name, "network", (1e6, 10.0), (1e5, 10.0))
    def _(rng, nbeta, gamma):
        order, turn = rng.permutation(sizes[0]), rotation(rng, sizes[2])
        at = turned_weights(trained_weights()[name], sizes, order, turn)

        def answers():
            # The decay leaves the rotations of the width as the only flat directions.
            rank = len(at) - sizes[2] * (sizes[2] - 1) // 2
            return coefficient_answers(exact.regular(rank), ORBIT) | population_answers(name, nbeta, gamma)

        return Draft(transformer, arrays_of(sizes, order), at, answers, sizes)


for _name, _sizes in SIZES.items():
    _transformer(_name, _sizes)
