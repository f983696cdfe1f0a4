"""Moments of posteriors by routes that share no code with ``icllab.posteriors``: for tests alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, ndtri
from scipy.stats import qmc


def of_weights(energy, weights):
    """Mean and variance of tK, and the free energy, of nodes with weights of the prior, of sum 1."""
    factor = weights * np.exp(-(energy - energy.min()))
    total = factor.sum()
    mean = (factor * energy).sum() / total
    return mean, (factor * (energy - mean) ** 2).sum() / total, energy.min() - math.log(total)


def by_curvature(problem):
    """Normal posteriors, from the derivatives of the loss by automatic differentiation."""
    at, t, gamma = jnp.asarray(problem.at), problem.nbeta, problem.localization
    loss = problem.loss if problem.data is None else lambda w: problem.loss(w, problem.data)
    h, g = np.asarray(jax.hessian(loss)(at)), np.asarray(jax.grad(loss)(at))
    sigma = np.linalg.inv(t * h + gamma * np.eye(len(g)))
    mean = -t * sigma @ g  # from the point
    slope = t * (g + h @ mean)
    level = t * (g @ mean + mean @ h @ mean / 2) + t * np.trace(h @ sigma) / 2
    variance = t**2 * np.trace(h @ sigma @ h @ sigma) / 2 + slope @ sigma @ slope
    energy = t * (g @ mean + mean @ h @ mean / 2) + gamma / 2 * mean @ mean
    return level, variance, energy - np.linalg.slogdet(gamma * sigma)[1] / 2


def covariances_by_curvature(problem):
    """Covariances of the losses of samples with the query's loss, if all are quadratic."""
    at, t, gamma = jnp.asarray(problem.at), problem.nbeta, problem.localization
    draft, rows = problem.draft, {name: jnp.asarray(row) for name, row in problem.data.items()}

    def losses(w):
        query = draft.formula(jnp, w, {}, {n: jnp.asarray(r) for n, r in draft.query.items()}, draft.sizes)
        return jnp.concatenate([draft.formula(jnp, w, {}, rows, draft.sizes), query])

    h, g = np.asarray(jax.hessian(losses)(at)), np.asarray(jax.jacobian(losses)(at))
    whole, slope = h[:-1].mean(0), g[:-1].mean(0)
    sigma = np.linalg.inv(t * whole + gamma * np.eye(len(slope)))
    g = g - np.einsum("iab,b->ia", h, t * sigma @ slope)
    traces = np.einsum("iab,bc,cd,da->i", h, sigma, h[-1], sigma) / 2
    return (g @ sigma @ g[-1] + traces)[:-1]


def by_convolution(scale, factors, t, gamma, step=0.01):
    """Products of powers of norms, by the density of the logarithm of the product."""
    total, low = np.ones(1), 0.0
    for dim, power in factors:
        ends = -45.0 * 2 * power / dim - 5, 2 * power * math.log(12 / math.sqrt(gamma) * math.sqrt(dim))
        x = np.arange(math.floor(ends[0] / step), math.ceil(ends[1] / step) + 1) * step
        logs = x / (2 * power)
        density = dim * logs - gamma / 2 * np.exp(2 * logs) + dim / 2 * math.log(gamma) + (1 - dim / 2) * math.log(2)
        density = np.exp(density - gammaln(dim / 2)) / (2 * power)
        low, size = low + x[0], len(total) + len(x) - 1
        total = np.fft.irfft(np.fft.rfft(total, 2 * size) * np.fft.rfft(density, 2 * size), 2 * size)[:size] * (
            step if len(total) > 1 else 1
        )
    x = low + step * np.arange(len(total))
    energy, weight = scale * t * np.exp(x), total * step
    mass = weight * np.exp(-energy)
    mean = (mass * energy).sum() / mass.sum()
    return mean, (mass * energy**2).sum() / mass.sum() - mean**2, -math.log(mass.sum())


def line(width, reach, points):
    """Nodes and weights of a line that is fine in the middle."""
    ends = math.asinh(reach / width)
    x = np.linspace(-ends, ends, points)
    return width * np.sinh(x), width * np.cosh(x) * (x[1] - x[0])


def normal_line(width, gamma, points, reach=8.5):
    """Nodes around zero and weights of the normal density of precision gamma."""
    nodes, weights = line(width, reach / math.sqrt(gamma), points)
    return nodes, weights * np.exp(-gamma / 2 * nodes**2) * math.sqrt(gamma / (2 * math.pi))


def product_of(numbers, size):
    """All vectors of this size with entries of some numbers."""
    return np.stack(np.meshgrid(*[numbers] * size, indexing="ij"), axis=-1).reshape(-1, size)


def on_all(problem, width, points, turned=None):
    """The loss itself on a grid of all parameters: the moments, and covariances with the query if there are data."""
    size, t, gamma = len(problem.at if turned is None else turned), problem.nbeta, problem.localization
    nodes, weights = normal_line(width, gamma, points)
    grid, weight = product_of(nodes, size), product_of(weights, size).prod(1)
    grid = problem.at + (grid if turned is None else grid @ turned)
    draft = problem.draft
    both = draft.rows and {name: np.concatenate([row, draft.query[name]]) for name, row in draft.rows.items()}
    arrays = {name: jnp.asarray(array) for name, array in draft.arrays.items()}
    rows = both and {name: jnp.asarray(row) for name, row in both.items()}
    each = jax.jit(jax.vmap(lambda w: draft.formula(jnp, w, arrays, rows, draft.sizes)))
    losses = np.concatenate(
        [np.asarray(each(jnp.asarray(part))) for part in np.array_split(grid, 1 + len(grid) // 50_000)]
    )
    if both is None:
        return of_weights(t * (losses - float(problem.numpy_loss(problem.at))), weight), None
    above = losses[:, :-1].mean(1) - problem.numpy_loss(problem.at).mean()
    posterior = weight * np.exp(-t * (above - above.min()))
    centred = losses - (posterior / posterior.sum()) @ losses
    return of_weights(t * above, weight), (posterior / posterior.sum() * centred[:, -1]) @ centred[:, :-1]


def by_bartlett(sizes, scale, t, gamma, points=121):
    """Two layers of zero, the smallest side 2, by the triangular factor of the Wishart matrix."""
    inputs, hidden, outputs = sizes
    inner, outer = min(inputs, outputs), max(inputs, outputs)
    freedom = max(inner, hidden)
    x = np.linspace(-28, math.log(9.0), points * 2)
    first, second = (
        (k * x - np.exp(2 * x) / 2 + (1 - k / 2) * math.log(2) - gammaln(k / 2)) for k in (freedom, freedom - 1)
    )
    between, of_between = normal_line(1e-3, 1.0, points)
    diagonal = np.exp(first)[:, None, None] * np.exp(second)[None, :, None] * (x[1] - x[0]) ** 2
    weight = diagonal * of_between[None, None]
    a, b, c = np.exp(2 * x)[:, None, None], np.exp(2 * x)[None, :, None], (between**2)[None, None]

    def free_energy(log_t):
        s = scale * math.exp(log_t) / gamma**2
        return -math.log((weight * (1 + s * (a + b + c) + s**2 * a * b) ** (-outer / 2)).sum())

    step = 0.05
    f = [free_energy(math.log(t) + i * step) for i in (-2, -1, 0, 1, 2)]
    level = (f[0] - 8 * f[1] + 8 * f[3] - f[4]) / (12 * step)
    bend = (-f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]) / (12 * step**2)
    return level, level - bend, f[2]


def by_outer_layer(sizes, problem, points=901):
    """One hidden unit and a truth of rank one, with the first layer integrated out and the second on a grid."""
    inputs, _, outputs = sizes
    t, gamma, scale = problem.nbeta, problem.localization, float(problem.draft.arrays["scale"][0])
    spectrum = np.linalg.svd(problem.draft.arrays["root"], compute_uv=False)
    truth = problem.draft.arrays["truth"]
    outer = np.linalg.norm(problem.at[inputs:])
    inner = float(np.linalg.norm(problem.at[:inputs]))
    strengths = np.zeros(inputs)
    strengths[0] = np.linalg.norm(truth) / spectrum[0]  # the truth is along the first direction of the root
    assert np.isclose(strengths[0], outer * inner)
    along, of_along = normal_line((t * scale * inner**2) ** -0.5, gamma, points)
    radius = np.exp(np.linspace(-22, math.log(9 / math.sqrt(gamma)), points))
    k = outputs - 1
    of_radius = (
        k * np.log(radius * math.sqrt(gamma)) - gamma / 2 * radius**2 + (1 - k / 2) * math.log(2) - gammaln(k / 2)
    )
    weight = of_along[:, None] * np.exp(of_radius)[None] * math.log(radius[1] / radius[0])
    b = (outer + along)[:, None]
    square = b**2 + radius[None] ** 2
    energy, logs, means, variances = 0.0, 0.0, 0.0, 0.0
    for root, strength, centre in zip(spectrum, strengths, [inner, *[0.0] * (inputs - 1)], strict=True):
        h = t * scale * root**2 * square
        precision = h + gamma
        mean = (t * scale * root**2 * strength * b + gamma * centre) / precision
        rest = t * scale * root**2 * (strength**2 - 2 * strength * b * mean + square * mean**2) / 2
        energy = energy + rest + gamma / 2 * (mean - centre) ** 2
        logs = logs - np.log(precision / gamma) / 2
        slope = t * scale * root**2 * (square * mean - strength * b)
        means = means + rest + h / precision / 2
        variances = variances + (h / precision) ** 2 / 2 + slope**2 / precision
    posterior = weight * np.exp(logs - energy)
    total = posterior.sum()
    level = (posterior * means).sum() / total
    return level, (posterior * (variances + (means - level) ** 2)).sum() / total, -math.log(total)


def by_angles(problem, points=300, angles=3000):
    """Two tanh units, with the output weights integrated out and the others in polar coordinates."""
    t, gamma, scale = problem.nbeta, problem.localization, float(problem.draft.arrays["scale"][0])
    angle = (np.arange(angles) + 0.5) * 2 * math.pi / angles
    radius = np.exp(np.linspace(-14, math.log(8.5 / math.sqrt(gamma)), points))
    weight = (gamma * radius**2 * np.exp(-gamma / 2 * radius**2) * math.log(radius[1] / radius[0]))[:, None] / angles
    x, mass = problem.draft.arrays["x"], problem.draft.arrays["weight"]
    units = [np.tanh(radius[:, None, None] * f(angle)[None, :, None] * x) for f in (np.cos, np.sin)]
    s = t * scale / gamma
    a, b, c = (s * (mass * units[i] * units[j]).sum(2) for i, j in ((0, 0), (1, 1), (0, 1)))
    trace, determinant = a + b, a * b - c**2
    whole = 1 + trace + determinant
    share, square = (trace + 2 * determinant) / whole, None
    square = share**2 - 2 * determinant / whole  # sum of squares of the two shares
    posterior = weight * whole**-0.5
    total = posterior.sum()
    level = (posterior * share / 2).sum() / total
    return level, (posterior * (square / 2 + (share / 2 - level) ** 2)).sum() / total, -math.log(total)


def in_the_valley(problem):
    """The square of a cusp, by nodes that crowd around its curve."""
    t, gamma, scale = problem.nbeta, problem.localization, float(problem.draft.arrays["scale"][0])
    reach = 8.5 / math.sqrt(gamma)
    y, of_y = line(0.05, reach, 1501)
    x0 = np.sqrt(np.maximum(y, 0) ** 3)
    offset, of_offset = line(2e-4, reach + x0.max(), 4001)
    sums = np.zeros(3)
    for node, weight, middle in zip(y, of_y, x0, strict=True):
        # Twice the half x >= 0, which ends at zero: the nodes there have half the weight by a change of variable.
        u = np.abs(offset)
        place = middle + offset if middle > 0 else u
        inside = place >= 0
        energy = t * scale * (place**2 - node**3) ** 2
        mass = of_offset * np.exp(-energy - gamma / 2 * (place**2 + node**2)) * (inside if middle > 0 else 0.5)
        sums += 2 * weight * np.array([mass.sum(), (mass * energy).sum(), (mass * energy**2).sum()])
    zeroth, first, second = sums * gamma / (2 * math.pi)
    return first / zeroth, second / zeroth - (first / zeroth) ** 2, -math.log(zeroth)


def by_panels(problem, panels=110, order=20):
    """Two variables by Gauss's rule on panels."""
    t, gamma = problem.nbeta, problem.localization
    x, w = np.polynomial.legendre.leggauss(order)
    edges = np.linspace(-8.5, 8.5, panels + 1) / math.sqrt(gamma)
    half = (edges[1] - edges[0]) / 2
    nodes = (edges[:-1, None] + half * (x[None] + 1)).ravel()
    weights = np.tile(half * w, panels) * np.exp(-gamma / 2 * nodes**2) * math.sqrt(gamma / (2 * math.pi))
    grid = problem.at + np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    arrays = {name: jnp.asarray(array) for name, array in problem.draft.arrays.items()}
    each = jax.jit(jax.vmap(lambda v: problem.draft.formula(jnp, v, arrays, None, problem.draft.sizes)))
    losses = np.concatenate([np.asarray(each(jnp.asarray(part))) for part in np.array_split(grid, 40)])
    weight = (weights[:, None] * weights[None]).ravel()
    return of_weights(t * (losses - float(problem.numpy_loss(problem.at))), weight)


def by_hermite(problem, order=24):
    """Moments under a strong localization, by Gauss's rule for the normal density."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    size = len(problem.at)
    grid, weight = product_of(x, size) / math.sqrt(problem.localization), product_of(w / w.sum(), size).prod(1)
    losses = np.array([problem.numpy_loss(problem.at + node) for node in grid])
    return of_weights(problem.nbeta * (losses - problem.numpy_loss(problem.at)), weight)


def by_sobol(scale, t, gamma, power=20):
    """Three layers of zero, 2 x 2 each, with the last integrated out, by a quasi-random mean."""
    points = ndtri(np.clip(qmc.Sobol(8, seed=0).random_base2(power), 1e-12, 1 - 1e-12)) / math.sqrt(gamma)
    first, second = points[:, :4].reshape(-1, 2, 2), points[:, 4:].reshape(-1, 2, 2)
    product = second @ first
    trace = (product**2).sum((1, 2))
    determinant = (product[:, 0, 0] * product[:, 1, 1] - product[:, 0, 1] * product[:, 1, 0]) ** 2
    s = scale * t / gamma
    whole = 1 + s * trace + s**2 * determinant
    weight, shares = 1 / whole / (1 / whole).sum(), (s * trace + 2 * s**2 * determinant) / whole
    level = weight @ shares
    squares = shares**2 - 2 * s**2 * determinant / whole  # sum of squares of the two shares, of two rows each
    return level, weight @ (squares + (shares - level) ** 2), -math.log((1 / whole).mean())
