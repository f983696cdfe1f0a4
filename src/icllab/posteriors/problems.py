r"""Posteriors of known answer: their registry, and what a problem is.

A problem is a :class:`~icllab.diagnostics.sampling.local_posteriors.LocalPosterior` with answers. A family is a
function of a random generator, which draws coefficients, rotations and scales, and of a setting, an inverse temperature
and a localization. It writes its loss once, as a formula of NumPy, JAX and PyTorch alike.
"""

import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_key, require_known
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.priors import Prior
from icllab.posteriors.answers import Answer
from icllab.posteriors.stored import stored_answers

VERSION = 1
MODULES = ("crossings", "layers", "data", "networks", "transformers", "baselines", "refusals")
DIFFICULTIES = ("regular", "singular", "data", "network", "baseline", "refused")
Formula = Callable[..., Any]  # (numpy, jax.numpy or torch; w; arrays; rows; sizes) -> the loss, of rows one of each


class Model(eqx.Module):
    """A formula as a loss of JAX: of all parameters, or the mean over rows."""

    formula: Formula = eqx.field(static=True)
    arrays: Any
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, w: Any, rows: Any = None) -> Any:
        """The loss."""
        arrays, rows = jax.tree.map(lambda leaf: jnp.asarray(leaf, w.dtype), (self.arrays, rows))
        return jnp.mean(self.formula(jnp, w, arrays, rows, self.sizes))


class Draft(NamedTuple):
    """A loss with its point, its data and its answers, as a family returns them."""

    formula: Formula
    arrays: Mapping[str, np.ndarray]
    at: np.ndarray
    answers: Callable[[], Mapping[str, Answer]]
    sizes: tuple[int, ...] = ()
    rows: Mapping[str, np.ndarray] | None = None
    query: Mapping[str, np.ndarray] | None = None  # one row, whose loss is the observable
    tilt: np.ndarray | None = None  # coefficients of the losses of samples in the tilt, of sum 0
    prior: Prior | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Problem(LocalPosterior):
    r"""A local posterior whose answers are known.

    Attributes:
        name: Name of the family.
        answers: Name -> :class:`Answer`: ``coefficient`` :math:`\lambda` and ``multiplicity`` m; at this temperature
            and localization ``level`` :math:`n\beta E[L-L(w^*)]`, ``variance`` :math:`(n\beta)^2\operatorname{Var}L`,
            and ``free_energy`` :math:`-\log E_0[e^{-n\beta(L-L(w^*))}]` under the normalised prior of the localization;
            with data ``influence`` :math:`-\operatorname{Cov}(\ell_i,\phi)` of each sample on the query's loss
            :math:`\phi`, and ``susceptibility`` :math:`-n\beta\operatorname{Cov}(\phi,\Delta)` of :math:`\phi` to the
            tilt :math:`\Delta`. Empty: there is none, and an estimator is to warn.
        difficulty: ``regular``, ``singular``, ``data``, ``network``, ``baseline`` or ``refused``.
        draft: Formula, arrays, query and tilt.
    """

    name: str = ""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    difficulty: str = ""
    draft: Draft | None = None

    @property
    def refused(self) -> bool:
        """True if the right answer is a warning."""
        return self.difficulty == "refused"

    def numpy_loss(self, w: np.ndarray, rows: Any = None) -> np.ndarray:
        """The loss in NumPy, of all the data or of given rows, one number for each."""
        draft = self.parts
        rows = draft.rows if rows is None else rows
        return np.asarray(draft.formula(np, np.asarray(w), draft.arrays, rows, draft.sizes))

    @property
    def parts(self) -> Draft:
        """The draft, which every problem of the set has."""
        if self.draft is None:
            raise expected("problem", "one of posteriors.problem(name)", "a posterior without a formula")
        return self.draft

    def query(self, w: Any) -> Any:
        """The loss of the query, an observable."""
        draft = self.parts
        if draft.query is None:
            raise expected("problem", "a problem with data", self.name)
        return Model(draft.formula, dict(draft.arrays), draft.sizes)(w, dict(draft.query))

    def tilted(self, w: Any) -> Any:
        r"""The loss on the tilted data, :math:`L + \Delta`."""
        draft = self.parts
        if draft.tilt is None:
            raise expected("problem", "a problem with data", self.name)
        arrays, rows = jax.tree.map(lambda leaf: jnp.asarray(leaf, w.dtype), (dict(draft.arrays), draft.rows))
        losses = draft.formula(jnp, w, arrays, rows, draft.sizes)
        return jnp.sum(losses * jnp.asarray(draft.tilt + 1 / len(draft.tilt), w.dtype))

    def __repr__(self) -> str:
        return one_line("Problem", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Problem", self._summary())

    def _summary(self) -> dict[str, object]:
        stated = {name: answer.value for name, answer in self.answers.items() if np.ndim(answer.value) == 0}
        fields = super()._summary() | {"parameters": np.size(self.at)}
        return {"name": self.name, "difficulty": self.difficulty} | fields | stated


class Family(NamedTuple):
    """A family of problems with its settings."""

    draw: Callable[[np.random.Generator, float, float], Draft]
    difficulty: str
    settings: tuple[tuple[float, float], ...]  # inverse temperature and localization


_FAMILIES: dict[str, Family] = {}


def family(name: str, difficulty: str, *settings: tuple[float, float]) -> Callable[[Any], Any]:
    """Register a function ``(generator, nbeta, localization) -> Draft`` as a family; the first setting is the default.

    Raises:
        InputError: The name is taken or the difficulty is unknown.
    """
    require_known("difficulty", difficulty, DIFFICULTIES)
    if name in _FAMILIES:
        raise expected("name", "a new name of a family", name)

    def register(draw: Any) -> Any:
        _FAMILIES[name] = Family(draw, difficulty, settings)
        return draw

    return register


def families() -> Mapping[str, Family]:
    """All families by name."""
    for module in MODULES:
        importlib.import_module(f"icllab.posteriors.{module}")
    return _FAMILIES


def version() -> int:
    """Version of the set: a paper cites "posteriors 1"."""
    return VERSION


def names() -> list[str]:
    """Names of the problems."""
    return list(families())


def difficulty(name: str) -> str:
    """The difficulty of a problem."""
    require_known("problem", name, families())
    return _FAMILIES[name].difficulty


def problem(name: str, *, key: PRNGKeyArray | None = None, setting: int = 0) -> Problem:
    r"""A posterior whose answers are known.

    Args:
        name: Name of a family, of :func:`names`.
        key: Key that draws the family's coefficients, rotations and scales; None: the member that papers cite.
        setting: Number of the temperature and the localization, which a family has one to three of.

    Returns:
        A ``LocalPosterior`` with ``answers``, each with its error and its basis; see :class:`Problem`.

    Raises:
        InputError: There is no such problem or setting.
    """
    require_known("problem", name, families())
    entry = _FAMILIES[name]
    if isinstance(setting, bool) or setting not in range(len(entry.settings)):
        raise expected("setting", f"an integer from 0 to {len(entry.settings) - 1}", setting)
    seed = [zlib.crc32(name.encode()), VERSION]
    if key is not None:
        require_key(key)
        seed += np.asarray(jax.random.key_data(key)).tolist()
    nbeta, localization = entry.settings[setting]
    draft = entry.draw(np.random.default_rng(seed), nbeta, localization)
    answers = stored_answers().get((name, setting)) if key is None else None
    answers = draft.answers() if answers is None else answers
    return Problem(
        loss=Model(draft.formula, dict(draft.arrays), draft.sizes),
        at=np.asarray(draft.at, np.float64),
        data=None if draft.rows is None else dict(draft.rows),
        nbeta=nbeta,
        localization=localization,
        prior=draft.prior,
        name=name,
        answers=dict(answers),
        difficulty=entry.difficulty,
        draft=draft,
    )
