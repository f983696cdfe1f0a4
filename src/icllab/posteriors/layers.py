"""Linear networks and linear attention in random coordinates: reduced-rank regression of two and three layers."""

import itertools

import numpy as np

from icllab.posteriors.answers import coefficient_answers, moment_answers
from icllab.posteriors.crossings import COLD, GRID, MELLIN, NARROW, WARM, rotation
from icllab.posteriors.integrals import on_grid, product_of_norms, residuals, three_layers_of_zero, two_layers_of_zero
from icllab.posteriors.populations import population_answers
from icllab.posteriors.problems import Draft, family
from icllab.theory import learning_coefficients as exact

DEEP = "Source: [Aoyagi24]."
TWO = "Source: [Aoyagi05]."
STRATUM = "Derived: docs/singular-learning.md, Strata of two linear layers."
ATTENTION = "Derived: docs/singular-learning.md, Linear attention is reduced-rank regression."
WISHART = "Derived: docs/posteriors.md, Layers of zero."


def network(xp, w, arrays, rows, sizes):
    """Half the squared distance of a product of matrices from the truth, both times the root of a covariance."""
    product, begin = arrays["root"], 0
    for i in range(len(sizes) - 1):
        before, after = sizes[i], sizes[i + 1]
        product = w[begin : begin + before * after].reshape(after, before) @ product
        begin += before * after
    return arrays["scale"][0] * xp.sum((product - arrays["truth"]) ** 2) / 2


def _draft(rng, sizes, diagonals, answers, *, scale, root=None):
    """Layers with given diagonals, turned by random orthogonal matrices between them, which the localization allows."""
    turns = [rotation(rng, size) for size in sizes]
    layers = []
    for (before, after), diagonal in zip(itertools.pairwise(range(len(sizes))), diagonals, strict=True):
        layer = np.zeros((sizes[after], sizes[before]))
        np.fill_diagonal(layer, np.pad(diagonal, (0, max(sizes))))
        layers.append(turns[after] @ layer @ turns[before].T)
    root = turns[0] @ np.diag(np.ones(sizes[0]) if root is None else root)
    product = root
    for layer in layers:
        product = layer @ product
    arrays = {"root": root, "truth": product, "scale": np.array([scale])}
    return Draft(network, arrays, np.concatenate([layer.ravel() for layer in layers]), answers, tuple(sizes))


def _scale(rng):
    return 10 ** rng.uniform(-0.5, 0.5)


def _of_zero(rng, sizes, nbeta, gamma):
    """Layers at zero, the most singular point, by Mellin integrals if they are one unit wide inside."""
    scale = _scale(rng)

    def answers():
        known = coefficient_answers(exact.deep_linear(sizes, 0), DEEP)
        if set(sizes[1:-1]) == {1}:
            factors = [(sizes[0], 1), (sizes[-1], 1), *[(1, 1)] * (len(sizes) - 3)]
            return known | moment_answers(product_of_norms(scale / 2, factors, nbeta, gamma), MELLIN)
        of_zero = two_layers_of_zero if len(sizes) == 3 else three_layers_of_zero
        return known | moment_answers(of_zero(sizes, scale, nbeta, gamma), WISHART)

    return _draft(rng, sizes, [()] * (len(sizes) - 1), answers, scale=scale)


ZERO = ((2, 2, 2), (3, 2, 4), (5, 2, 3), (4, 1, 4), (3, 1, 2), (3, 1, 1, 2), (2, 1, 1, 1, 2), (2, 2, 2, 2))
for _sizes in ZERO:
    family("layers_" + "_".join(map(str, _sizes)) + "_rank_0", "singular", COLD, WARM, NARROW)(
        lambda rng, nbeta, gamma, sizes=_sizes: _of_zero(rng, sizes, nbeta, gamma)
    )


def _one_unit(rng, inputs, outputs, nbeta, gamma, spectrum=None):
    """One hidden unit and a truth of rank one: given the first layer, the second is normal."""
    scale, size = _scale(rng), rng.uniform(0.7, 1.4, 2)
    root = np.ones(inputs) if spectrum is None else spectrum

    def answers():
        known = coefficient_answers(
            exact.reduced_rank_regression(inputs, 1, outputs, 1), TWO if spectrum is None else ATTENTION
        )
        # The other outputs are normal around zero; they count by their determinant and their variances.
        truth = np.zeros(inputs)
        truth[0] = size[0] * size[1]

        def of_nodes(nodes):
            seen = nodes * root[None]
            design = np.concatenate([seen, np.zeros((len(nodes), 1))], axis=1)[..., None]
            targets = np.concatenate([truth * root, np.zeros(1)])[None]
            options = {"t": nbeta, "gamma": gamma, "scale": scale}
            first = residuals(design, targets, centre=size[1:], **options)
            other = residuals(design, 0 * targets, centre=np.zeros(1), **options)
            count = outputs - 1
            return first._replace(
                losses=first.losses + count * other.losses,
                evidence=first.evidence + count * other.evidence,
                variance=first.variance + count * other.variance,
            )

        width = (nbeta * scale * float(root.max() ** 2) * float(size[1] ** 2) + gamma) ** -0.5
        centre = np.zeros(inputs)
        centre[0] = size[0]
        options = {"t": nbeta, "gamma": gamma, "scale": scale, "at_point": 0.0, "width": width}
        moments = on_grid(of_nodes, centre, points=601 if inputs == 2 else 145, **options)
        return known | moment_answers(moments, GRID)

    return _draft(rng, (inputs, 1, outputs), [size[:1], size[1:]], answers, scale=scale, root=spectrum)


@family("layers_2_1_4_rank_1", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    return _one_unit(rng, 2, 4, nbeta, gamma)


@family("attention_2_1_rank_1", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    return _one_unit(rng, 2, 2, nbeta, gamma, np.array([1.0, rng.uniform(0.4, 0.8)]))


def _populations(name, difficulty, sizes, diagonals, coefficient, basis, root=None):
    """A network whose level is known from populations and long chains, at one product of scale and temperature."""

    @family(name, difficulty, (1e4, 1.0), (1e3, 1.0))
    def _(rng, nbeta, gamma):
        # The tables are of these numbers; coordinates alone are drawn.
        def answers():
            return coefficient_answers(coefficient, basis) | population_answers(name, nbeta, gamma)

        return _draft(rng, sizes, diagonals, answers, scale=1.0, root=root)


_populations("layers_3_2_3_rank_1", "singular", (3, 2, 3), [(1,), (1,)], exact.deep_linear((3, 2, 3), 1), TWO)
_populations(
    "layers_3_2_2_3_rank_1", "singular", (3, 2, 2, 3), [(1,), (1,), (1,)], exact.deep_linear((3, 2, 2, 3), 1), DEEP
)
_populations(
    "layers_3_3_3_stratum_2_2",
    "singular",
    (3, 3, 3),
    [(1, 1, 0), (1, 0, 1)],
    exact.reduced_rank_stratum(3, 3, 3, 1, rank_in=2, rank_out=2),
    STRATUM,
)
_populations(
    "attention_3_2_rank_1",
    "singular",
    (3, 2, 3),
    [(1,), (1,)],
    exact.linear_attention(3, 2, 1),
    ATTENTION,
    root=np.array([1.0, 0.5, 0.25]) ** 0.5,
)
