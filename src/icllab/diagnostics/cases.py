"""What a diagnostic may be given: a predictor, several by name, an ensemble, or a training run.

Every diagnostic that takes predictors takes these kinds, and its result has their axes: none for one predictor,
``predictor`` for several by name, ``member`` with the coordinates ``seed`` and whatever is swept for an ensemble and
for the trained members of a run, and ``step`` beside it for the parameters that a run kept (``run.trajectory``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.errors import IclError, InputError, expected, kind_of, unknown
from icllab.diagnostics.tried import tried
from icllab.training.ensembles import Ensemble, alone
from icllab.training.runs import Run, Trajectory

KINDS = "a predictor, a mapping of names to predictors, an Ensemble, or a Run (run.trajectory for its kept steps)"


Measure: TypeAlias = Callable[[Ensemble], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Cases:
    """The predictors that are measured, and the axes of what is measured of them."""

    dims: tuple[str, ...]
    coords: Mapping[str, Any]  # as xarray takes them
    shape: tuple[int, ...]
    # Functions that load one ensemble each, one for each name or step: so that one step at a time is on the device.
    parts: tuple[Callable[[], Ensemble], ...]

    @classmethod
    def of(cls, given: Any, name: str = "predictors", *, task: Any = None, key: Any = None) -> "Cases":
        """The cases of any of the kinds; ``name`` is that of the argument, for the error.

        With a ``task`` the user's own predictors are tried on one of its prompts: what JAX cannot trace is called on
        the host from then on, and what sees its target, or later entries, is warned of by name.

        Raises:
            InputError: It is of no such kind, or holds no predictor; or one cannot answer a prompt of the task.
        """
        if task is not None:
            given = tried(given, task, key=key)
        if isinstance(given, Run):
            given = given.members
        if isinstance(given, Ensemble):
            return cls(("member",), _members(given.coordinates), (given.size,), (lambda: given,))
        if isinstance(given, Trajectory):
            if not len(given):
                raise expected(name, "kept steps", "none", "keep them: fit(..., record=Record(keep=...))")
            size = len(given.coordinates["seed"])
            coords = _members(given.coordinates) | {"step": np.asarray(given.steps)}
            parts = tuple(lambda step=step: given.at(step) for step in given.steps)
            return cls(("member", "step"), coords, (size, len(parts)), parts)
        if isinstance(given, Mapping):
            if not given:
                raise expected(name, "at least one, by name", given)
            for key, one in given.items():
                if not (isinstance(key, str) and _is_predictor(one)):
                    raise expected(name, KINDS, f"a mapping with {key!r}: {kind_of(one)}")
            loaded = [alone(one) for one in given.values()]
            parts = tuple(lambda one=one: one for one in loaded)
            return cls(("predictor",), {"predictor": list(given)}, (len(parts),), parts)
        if not _is_predictor(given):
            raise expected(name, KINDS, kind_of(given))
        single = alone(given)
        return cls((), {}, (), (lambda: single,))

    def ensembles(self) -> Iterator[Ensemble]:
        """All predictors, as ensembles of one shape each."""
        return (part() for part in self.parts)

    def named(self, name: str) -> Ensemble:
        """The predictor of this name, as an ensemble of one."""
        names = self.coords.get("predictor", [])
        if name not in names:
            raise unknown("predictor", name, names)
        return self.parts[names.index(name)]()

    def measured(self, measure: Measure) -> dict[str, np.ndarray]:
        """What is measured of all cases: name -> array with the axes of the cases first.

        ``measure`` makes arrays by name of an ensemble, each with a leading axis for its members.

        Raises:
            InputError: Results of two predictors have different shapes.
        """
        rows = [self._answered(measure, members) for members in self.ensembles()]
        for name in rows[0]:
            shapes = list({row[name].shape[1:]: None for row in rows})
            if len(shapes) > 1:
                hint = "measure predictors of different sizes one by one"
                raise expected(name, f"the shape {list(shapes[0])} for every predictor", list(shapes[1]), hint)
        # [member, part, ...], of which one axis or the other has length 1 unless both are the cases'.
        found = {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
        return {name: values.reshape((*self.shape, *values.shape[2:])) for name, values in found.items()}

    @staticmethod
    def _answered(
        measure: Callable[[Ensemble], Mapping[str, np.ndarray]], members: Ensemble
    ) -> Mapping[str, np.ndarray]:
        """What is measured; shapes that do not fit, of a model for other prompts, are said in one line."""
        try:
            return measure(members)
        except IclError:
            raise
        except (TypeError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            came = f"{type(members.stacked).__name__}, {type(error).__name__}: {first}"
            raise InputError(f"predictors: expected what answers prompts of this task, got {came}") from error

    def dataset(
        self, measured: Mapping[str, np.ndarray], further: Mapping[str, Any] | None = None, **attributes: Any
    ) -> xr.Dataset:
        """What :meth:`measured` returns, with axes ``further`` to those of the cases, given by their coordinates.

        An array has the first of them, as many as it has axes.
        """
        further = further or {}
        variables = {name: ((*self.dims, *further)[: values.ndim], values) for name, values in measured.items()}
        return xr.Dataset(variables, coords=dict(self.coords) | dict(further), attrs=attributes)


def _members(coordinates: Mapping[str, np.ndarray]) -> dict[str, Any]:
    for name in ("member", "step"):
        if name in coordinates:
            raise expected("ensemble", "swept names other than those of its axes", name)
    coords: dict[str, Any] = {"member": np.arange(len(coordinates["seed"]))}
    return coords | {name: ("member", values) for name, values in coordinates.items()}


def _is_predictor(given: Any) -> bool:
    """A function of a prompt; a class is called with other things."""
    return callable(given) and not isinstance(given, type)
