"""Choice of a solver: estimated iterations, from the spectrum's edges, against a Cholesky factor's work and memory."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

SOLVERS: dict[str, str] = {
    "primal_pcg": "whitened conjugate gradients on the normal equations",
    "dual_cg": "conjugate gradients on the dual",
    "dual_cholesky": "Cholesky factor of the n x n kernel",
    "primal_cholesky": "Cholesky factor of the d(d+1) x d(d+1) normal equations",
}

# Floating-point operations a second on one CPU core; only the ratios matter, and those roughly.
_PRODUCTS = {"float32": 100e9, "float64": 40e9}
_FACTOR = 25e9
_MEMORY = 2**31  # bytes a factor may take, with three more matrices of its size on the way to it
_COMPILING = 0.5  # seconds that a solver costs before its first step, once for every size of problem
_SMALL = 1024  # order of a factor that is sooner found than anything is compiled

NEGLIGIBLE = 1e-10  # eigenvalues of the design below this part of the largest are directions no prompt has


class Choice(NamedTuple):
    """A solver and, in a few words, the reason for it."""

    solver: str
    reason: str


def primal_condition(spectrum: Float[np.ndarray, " parameter"], prompts: int, shift: float) -> float:
    r"""The condition number after whitening, from the Marchenko-Pastur edges :math:`(1 \pm \sqrt{p/n})^2`.

    ``spectrum`` has the p eigenvalues of :math:`X^\top X \otimes H^\top H / n` that are not zero, ``prompts`` is n and
    ``shift`` is :math:`(n/d) \lambda`.

    Source: [MarchenkoPastur67].
    """
    p, mean = len(spectrum), float(np.mean(spectrum))
    low = max(0.0, 1 - math.sqrt(p / prompts)) ** 2 + (p <= prompts) / p**2
    return (mean * (1 + math.sqrt(p / prompts)) ** 2 + shift) / (mean * low + shift)


def dual_condition(spectrum: Float[np.ndarray, " parameter"], prompts: int, shift: float) -> float:
    r"""The condition number of :math:`Z Z^\top`, from the edges of the generalised Marchenko-Pastur law.

    The edges are the extrema of :math:`\psi(m) = -1/m + \frac1n \sum_k t_k / (1 + t_k m)`: the maximum over
    m > 0 is the lower one, the minimum over :math:`-1/\max t < m < 0` the upper one.

    Source: [MarchenkoPastur67].
    """
    n, t = prompts, spectrum / prompts
    t = np.sort(t)[:: max(1, len(t) // 512)]
    weight = len(spectrum) / len(t) / n
    mean, top = float(np.mean(t)), float(np.max(t))

    def psi(m: np.ndarray) -> np.ndarray:
        return -1 / m + weight * np.sum(t / (1 + t * m[:, None]), axis=1)

    low = float(np.max(psi(np.geomspace(1e-4, 1e8, 200) / mean), initial=0.0))
    high = float(np.min(psi(-np.linspace(0, 1, 202)[1:-1] / top)))
    low += mean / n**2  # what a square matrix keeps
    return (n * high + shift) / (n * low + shift)


def steps(condition: float, tolerance: float) -> float:
    r"""The classical bound :math:`\frac12 \sqrt{c}\, \log(2 / \mathrm{tol})` on the steps of conjugate gradients."""
    return 0.5 * math.sqrt(condition) * math.log(2 / tolerance)


def choose(
    query: Float[np.ndarray, " dim"],
    feature: Float[np.ndarray, " feature"],
    *,
    prompts: int,
    ridge: float,
    precision: str,
    tolerance: float,
) -> Choice:
    r"""The solver of least estimated cost, from the eigenvalues of :math:`X^\top X` and of :math:`H^\top H`."""
    n, d = prompts, len(query)
    spectrum = (query[:, None] * feature[None, :]).reshape(-1) / n
    spectrum = spectrum[spectrum > NEGLIGIBLE * np.max(spectrum)]
    p, size, shift = len(spectrum), d * (d + 1), n / d * ridge
    costs: dict[str, tuple[float, str]] = {}

    def iterative(solver: str, condition: float) -> None:
        count = steps(condition, tolerance)
        costs[solver] = (count * 4 * n * size / _PRODUCTS[precision], f"about {count:.0f} iterations")

    def direct(solver: str, order: int, products: float) -> None:
        if 32 * order**2 <= _MEMORY:
            seconds = products / _PRODUCTS["float64"] + order**3 / 3 / _FACTOR
            costs[solver] = (seconds, f"a factor of order {order}")

    if not p:
        return Choice("primal_pcg", "every feature is zero")
    small = f"n = {n}, rank {p}: a factor so small costs less than compiling anything else"
    if ridge == 0 and n <= p and n <= _SMALL:
        return Choice("dual_cholesky", small)
    if n > p == size and 2 * n * size**2 / _PRODUCTS["float64"] < _COMPILING / 100:
        return Choice("primal_cholesky", small)
    if n > p or ridge > 0:
        iterative("primal_pcg", primal_condition(spectrum, n, shift))
        if p == size or ridge > 0:
            direct("primal_cholesky", size, 2 * n * size**2)
    if n <= p or ridge > 0:
        iterative("dual_cg", dual_condition(spectrum, n, shift))
        direct("dual_cholesky", n, 4 * n**2 * d)
    best, *alternatives = sorted(costs, key=lambda name: costs[name][0])
    reason = f"n = {n}, rank {p}: {costs[best][1]}"
    for alternative in alternatives[:1]:
        ratio = costs[alternative][0] / costs[best][0]
        reason += f"; {alternative} ({costs[alternative][1]}) would cost {ratio:.2g} times as much"
    return Choice(best, reason)
