"""Two networks on the same prompts: differences of their losses, with paired errors."""

from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import InputError

if TYPE_CHECKING:
    from icllab.examination.results import Results


def differences(one: "Results", other: "Results") -> list[dict[str, Any]]:
    r"""Mean difference of the losses [prompt] of two networks, and its error, for each section that kept them.

    .. math:: d = \frac1n\sum_i(a_i - b_i), \qquad \mathrm{SE}^2 = \frac{1}{n(n-1)}\sum_i(a_i - b_i - d)^2

    Raises:
        InputError: The two were examined with other keys, tasks or sizes, so that their prompts differ.
    """
    for name in ("key", "size", "task"):
        if one.header[name] != other.header[name]:
            came = f"{name} {one.header[name]} and {other.header[name]}"
            raise InputError(f"examinations: expected the same prompts, got {came}; examine both in one call")
    measured = {section.name: section.dataset for section in other.sections if section.dataset is not None}
    rows = []
    for section in one.sections:
        if section.dataset is None or "samples" not in section.dataset or section.name not in measured:
            continue
        first, second = section.dataset["samples"], measured[section.name]["samples"]
        axis = next((str(dim) for dim in first.dims if dim != "prompt"), None)
        parts = [""] if axis is None else [str(value) for value in first[axis].values]
        pairs = zip(parts, np.atleast_2d(first.values), np.atleast_2d(second.values), strict=True)
        for part, a, b in pairs:
            error = float(np.std(a - b, ddof=1) / np.sqrt(len(a)))
            numbers = {"first": float(a.mean()), "second": float(b.mean()), "difference": float((a - b).mean())}
            rows.append({"section": section.name, "part": part, **numbers, "error": error})
    return rows
