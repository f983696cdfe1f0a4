"""Covariances: a scalar (isotropic), a vector (diagonal) or a matrix."""

import numpy as np

from icllab.core.errors import expected


def require_covariance(name: str, covariance: np.ndarray) -> None:
    """Raise unless a covariance is finite, symmetric and, up to rounding, positive semidefinite."""
    if covariance.ndim > 2 or (covariance.ndim == 2 and covariance.shape[0] != covariance.shape[1]):
        raise expected(name, "a number, a vector or a square matrix", f"shape {covariance.shape}")
    if not np.isfinite(covariance).all():
        raise expected(name, "finite numbers", "NaN or infinity")
    rounding = (
        (1e-5 if covariance.dtype == np.float32 else 1e-10) * np.abs(covariance).max() if covariance.ndim == 2 else 0.0
    )
    asymmetry = float(np.abs(covariance - covariance.T).max())
    if asymmetry > rounding:
        raise expected(name, "a symmetric matrix", f"entries that differ by {asymmetry:.3g} from the transpose")
    lowest = float(np.linalg.eigvalsh(covariance)[0] if covariance.ndim == 2 else covariance.min())
    if lowest < -rounding:
        raise expected(name, "eigenvalues >= 0", lowest)
