"""What is a covariance: a scalar (isotropic), a vector (diagonal) or a matrix."""

import numpy as np

from icllab.core.errors import expected


def require_covariance(name: str, given: np.ndarray) -> None:
    """Refuse a matrix that is not symmetric and positive semidefinite to rounding, and a negative number."""
    if given.ndim > 2 or (given.ndim == 2 and given.shape[0] != given.shape[1]):
        raise expected(name, "a number, a vector or a square matrix", f"shape {given.shape}")
    if not np.isfinite(given).all():
        raise expected(name, "finite numbers", "others")
    rounding = (1e-5 if given.dtype == np.float32 else 1e-10) * np.abs(given).max() if given.ndim == 2 else 0.0
    asymmetry = float(np.abs(given - given.T).max())
    if asymmetry > rounding:
        raise expected(name, "a symmetric matrix", f"entries that differ by {asymmetry:.3g} from the transpose")
    lowest = float(np.linalg.eigvalsh(given)[0] if given.ndim == 2 else given.min())
    if lowest < -rounding:
        raise expected(name, "no negative eigenvalue", lowest)
