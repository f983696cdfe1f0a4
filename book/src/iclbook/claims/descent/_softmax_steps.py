r"""Normalised descent and kernel ridge regression in NumPy, with the bounds that are stated for them.

A classifier descends the exponential loss of :math:`u_j = y_jx_j`, each step divided by the loss. Its least margin over
its length tends to the largest margin :math:`\gamma`, with a relative gap of at most
:math:`(\ln n + \frac12)/\eta\gamma^2L`. Richardson's iteration for kernel ridge regression contracts by the largest
eigenvalue of :math:`I - (d + \lambda)^{-1}(K + \lambda)`, with the sums d of the kernel's rows.
"""

import numpy as np
from scipy.optimize import nnls


def classifiers(signed: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """Classifiers [step, prompt, dim] of normalised descent on ``signed`` examples [prompt, example, dim]."""
    w, trajectory = np.zeros((len(signed), signed.shape[2])), []
    for _ in range(steps):
        scores = -np.einsum("pnd,pd->pn", signed, w)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        w = w + rate * np.einsum("pn,pnd->pd", weights / weights.sum(axis=1, keepdims=True), signed)
        trajectory.append(w)
    return np.array(trajectory)


def margins(signed: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Least product [..., prompt] of a classifier [..., prompt, dim] and the examples, over the classifier's length."""
    least = np.einsum("pnd,...pd->...pn", signed, classifier).min(axis=-1)
    return least / np.linalg.norm(classifier, axis=-1)


def largest_margin(signed: np.ndarray) -> float:
    """The largest margin of the examples [example, dim] of one prompt, by least squares with positive weights."""
    examples = np.append(signed.T, np.ones((1, len(signed))), axis=0)
    target = np.append(np.zeros(signed.shape[1]), 1.0)
    residual = examples @ nnls(examples, target)[0] - target
    return float(np.abs(residual[-1]) / np.linalg.norm(residual[:-1]))


def kernel_ridge(inputs: np.ndarray, labels: np.ndarray, ridge: float, temperature: float) -> tuple[float, float]:
    """Kernel ridge regression at the last of the inputs, and the factor by which a step of the iteration contracts."""
    kernel = np.exp(-((inputs[:, None] - inputs[None]) ** 2).sum(-1) / 2 / temperature)
    seen, query = kernel[:-1, :-1], kernel[-1, :-1]
    system, divisors = seen + ridge * np.eye(len(seen)), seen.sum(axis=1) + ridge
    root = divisors**-0.5
    least = np.linalg.eigvalsh(root[:, None] * system * root)[0]
    return float(query @ np.linalg.solve(system, labels)), float(1 - least)


def richardson(inputs: np.ndarray, labels: np.ndarray, ridge: float, temperature: float, steps: int) -> np.ndarray:
    """Answers [step] of the iteration at the last input; and the largest label less ridge times unknown of any step."""
    kernel = np.exp(-((inputs[:, None] - inputs[None]) ** 2).sum(-1) / 2 / temperature)[:, :-1]
    targets, alpha, answers, largest = np.append(labels, 0.0), np.zeros(len(inputs)), [], 0.0
    for _ in range(steps):
        largest = max(largest, float(np.abs(targets - ridge * alpha).max()))
        alpha = alpha + (targets - kernel @ alpha[:-1] - ridge * alpha) / (kernel.sum(axis=1) + ridge)
        answers.append(-ridge * alpha[-1])
    return np.append(answers, largest)


def ridge_bound(examples: int, ridge: float, size: float, layers: int, pieces: int) -> float:
    """Bound of the error of the last answer of the constructed transformer."""
    kappa, condition = 0.5 / np.sqrt(ridge * (1 + ridge)), (examples + ridge) / ridge
    spread = np.sqrt(examples * (examples + ridge))
    depth = (np.sqrt(examples / (1 + ridge)) + layers * kappa * (examples + ridge) * ridge / examples) * spread / ridge
    width = 9 / 16 / pieces**2 * condition * (1 + kappa * spread * condition)
    return size * (depth * (1 - 1 / condition) ** layers + width)
