"""Predictors that a diagnostic measures, and the axes of its result.

A diagnostic takes a predictor, several by name, an ensemble, or a training run. Its result has no axis for one
predictor, ``predictor`` for several by name, ``member`` with the coordinates ``seed`` and swept values for an ensemble
and for the trained members of a run, and also ``step`` for the parameters that a run kept (``run.trajectory``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import numpy as np
import xarray as xr
from jax.core import Tracer

from icllab.core.errors import IclError, InputError, expected, kind_of, unknown
from icllab.diagnostics.validate_predictor import name_of, validate_predictor
from icllab.models.pretrained.ignored_fields import ignored_fields
from icllab.training.ensembles import Ensemble, alone
from icllab.training.runs import Run, Trajectory

KINDS = "a predictor, a mapping of names to predictors, an Ensemble, or a Run (run.trajectory for its kept steps)"


Measure: TypeAlias = Callable[[Ensemble], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class PredictorAxes:
    """Predictors to measure, and the axes of the measurements."""

    dims: tuple[str, ...]
    coords: Mapping[str, Any]  # as xarray takes them
    shape: tuple[int, ...]
    # Functions that load one ensemble each, one for each name or step: so that one step at a time is on the device.
    loaders: tuple[Callable[[], Ensemble], ...]
    warnings: list[str] = field(default_factory=list)  # of the result, which grow while it is measured
    name: str = ""  # of a single predictor

    @classmethod
    def from_predictors(
        cls, predictors: Any, name: str = "predictors", *, task: Any = None, key: Any = None
    ) -> "PredictorAxes":
        """Axes of predictors of any kind; errors refer to the argument by ``name``.

        With a ``task`` the user's own predictors are validated on one of its prompts: a predictor that JAX cannot trace
        is called on the host, and a predictor that sees its target or later entries, or is random, causes a warning.

        Raises:
            InputError: The argument is of another kind or holds no predictor, or a predictor cannot answer a prompt, or
                not in the shape that it declares.
        """
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((predictors, task, key))):
            raise expected(
                name, "arrays with values", "traced ones", "call a diagnostic outside of jax.jit and jax.vmap"
            )
        if task is None:
            return cls._of(predictors, name)
        warnings: list[str] = []
        axes = cls._of(validate_predictor(predictors, task, key=key, complaints=warnings), name)
        return replace(axes, warnings=warnings, name=name_of(predictors))

    @classmethod
    def _of(cls, predictors: Any, name: str) -> "PredictorAxes":
        if isinstance(predictors, Run):
            predictors = predictors.members
        if isinstance(predictors, Ensemble):
            return cls(("member",), _member_coords(predictors.coordinates), (predictors.size,), (lambda: predictors,))
        if isinstance(predictors, Trajectory):
            if not len(predictors):
                raise expected(name, "kept steps", "none", "keep them: fit(..., record=Record(keep=...))")
            size = len(predictors.coordinates["seed"])
            coords = _member_coords(predictors.coordinates) | {"step": np.asarray(predictors.steps)}
            loaders = tuple(lambda step=step: predictors.at(step) for step in predictors.steps)
            return cls(("member", "step"), coords, (size, len(loaders)), loaders)
        if isinstance(predictors, Mapping):
            if not predictors:
                raise expected(name, "at least one, by name", predictors)
            for label, predictor in predictors.items():
                if not (isinstance(label, str) and _is_predictor(predictor)):
                    raise expected(name, KINDS, f"a mapping with {label!r}: {kind_of(predictor)}")
            ensembles = [alone(predictor) for predictor in predictors.values()]
            loaders = tuple(lambda ensemble=ensemble: ensemble for ensemble in ensembles)
            return cls(("predictor",), {"predictor": list(predictors)}, (len(loaders),), loaders)
        if not _is_predictor(predictors):
            raise expected(name, KINDS, kind_of(predictors))
        single = alone(predictors)
        return cls((), {}, (), (lambda: single,))

    def ensembles(self) -> Iterator[Ensemble]:
        """Load all predictors, as ensembles of one shape each."""
        return (load() for load in self.loaders)

    def select(self, name: str) -> Ensemble:
        """The predictor of this name, as an ensemble of one."""
        names = self.coords.get("predictor", [])
        if name not in names:
            raise unknown("predictor", name, names)
        return self.loaders[names.index(name)]()

    def measure(self, measure: Measure) -> dict[str, np.ndarray]:
        """Measure all predictors: name -> array whose first axes are the axes of the predictors.

        ``measure`` maps an ensemble to arrays by name, each with a leading axis of members.

        Raises:
            InputError: Results of two predictors have different shapes.
        """
        rows = [_measure_ensemble(measure, members) for members in self.ensembles()]
        for name in rows[0]:
            shapes = list({row[name].shape[1:]: None for row in rows})
            if len(shapes) > 1:
                hint = "measure predictors of different sizes one by one"
                raise expected(name, f"the shape {list(shapes[0])} for every predictor", list(shapes[1]), hint)
        # [member, loader, ...], of which one axis has length 1 unless both are in ``dims``.
        arrays = {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
        return {name: values.reshape((*self.shape, *values.shape[2:])) for name, values in arrays.items()}

    def by_predictor(self, texts: Sequence[str]) -> list[str]:
        """Sentences about the predictors, with names: from one text for each, whose sentences a semicolon separates.

        Equal sentences become one.
        """
        labels: dict[str, tuple[str, ...]] = {}
        for index, text in zip(np.ndindex(self.shape), texts, strict=True):
            for sentence in filter(None, text.split("; ")):
                labels[sentence] = (*labels.get(sentence, ()), self._label(index))
        return [f"{_several(names)}{sentence}" for sentence, names in labels.items()]

    def _label(self, index: tuple[int, ...]) -> str:
        if not self.dims:
            return f"predictor {self.name!r}" if self.name else ""
        parts = zip(self.dims, index, strict=True)
        return ", ".join(f"{dim} {np.asarray(self.coords[dim])[i].item()!r}" for dim, i in parts)

    def to_dataset(
        self, arrays: Mapping[str, np.ndarray], coords: Mapping[str, Any] | None = None, **attributes: Any
    ) -> xr.Dataset:
        """The arrays of :meth:`measure` as a Dataset, with further axes given by their coordinates.

        An array has the first of these axes, as many as its number of dimensions requires. The attribute ``warnings``
        has the sentences of the array ``warning``, one or an empty one for each predictor, and all others.
        """
        coords, arrays = coords or {}, dict(arrays)
        if "warning" in arrays or self.warnings:
            sentences = self.by_predictor(arrays.pop("warning", np.full(self.shape, "")).ravel().tolist())
            attributes["warnings"] = [*self.warnings, *sentences, *attributes.get("warnings", ())]
        variables = {name: ((*self.dims, *coords)[: values.ndim], values) for name, values in arrays.items()}
        loaders = self.loaders[:1] if "step" in self.dims else self.loaders  # steps are of one network
        attributes |= ignored_fields([load() for load in loaders])
        return xr.Dataset(variables, coords=dict(self.coords) | dict(coords), attrs=attributes)


def _measure_ensemble(measure: Measure, members: Ensemble) -> Mapping[str, np.ndarray]:
    """Measure one ensemble; shapes that do not fit, as of a model for other prompts, are reported in one line."""
    try:
        return measure(members)
    except IclError:
        raise
    except (TypeError, ValueError) as error:
        message = (str(error).splitlines() or [""])[0]
        came = f"{type(members.stacked).__name__}, {type(error).__name__}: {message}"
        raise InputError(f"predictors: expected predictors for prompts of this task, got {came}") from error


def _member_coords(coordinates: Mapping[str, np.ndarray]) -> dict[str, Any]:
    for name in ("member", "step"):
        if name in coordinates:
            raise expected("ensemble", "swept names other than member and step", name)
    coords: dict[str, Any] = {"member": np.arange(len(coordinates["seed"]))}
    return coords | {name: ("member", values) for name, values in coordinates.items()}


def _is_predictor(value: Any) -> bool:
    """True for a function of a prompt; False for a class, whose arguments are others."""
    return callable(value) and not isinstance(value, type)


def _several(labels: Sequence[str]) -> str:
    """Subject of a sentence: at most three labels and the number of others; empty for a single predictor."""
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return f"{'; '.join(labels[:3])}{more}: " if labels[0] else ""
