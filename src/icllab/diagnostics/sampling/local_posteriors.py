r"""Posteriors near a point: a loss, a temperature, a localization, and the weights that move.

.. math:: w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)\,\varphi(w)
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected, kind_of, require_instance
from icllab.core.protocols import is_task
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.sampling.local_loss import LocalLoss, loss_of_data
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.restricted import restricted_loss
from icllab.diagnostics.sampling.run_losses import network_loss, prompts_for, run_loss
from icllab.diagnostics.sampling.sampled_losses import BLOCK, require_mean, sample_count, vector_loss
from icllab.training.runs import Run

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False, eq=False)
class LocalPosterior:
    r"""A tempered posterior near a point, before anything is sampled.

    A loss that returns a vector has terms; their sum is L. With ``data`` it is a function of parameters and a batch of
    samples, the mean over these: the posterior is that of this empirical loss, and not of the population's. A field is
    exchanged by ``dataclasses.replace(posterior, nbeta=100.0)``.

    Attributes:
        loss: Function of parameters (and of samples, with ``data``), in nats per sample.
        at: Point :math:`w^*`, any tree whose floating-point arrays are the parameters; other leaves are constant.
        data: Samples, a tree of arrays with a leading axis; None: the loss has none.
        n: Number of samples that :math:`n\beta` is made of; None: as many as ``data`` has.
        nbeta: Inverse temperature, or several for a free energy; None: :math:`n/\log n`.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 if they are zero, and less
            where that decides; its effect on an estimate is then part of ``mcse``.
        weights: Weights that may move, as ``where`` of ``equinox.tree_at``, with the others fixed: of a model with
            layers ``lambda m: m.layers[0].query``. Or a tree like ``at`` of True, False or, for a part of an array,
            an array of booleans. Localization and parameter count refer to these weights. None: all.
        prior: Normal density or box beside the localization, for chains at a temperature; None: neither.

    Raises:
        InputError: A number is out of its range.
    """

    loss: Callable[..., Any]
    at: Any
    data: Any = None
    n: float | None = None
    nbeta: Any = None
    localization: float | None = None
    weights: Any = None
    prior: Prior | None = None

    def __post_init__(self) -> None:
        for name, least in (("n", 1.0), ("localization", 0.0)):
            if getattr(self, name) is not None:
                Domain(above=least).require(name, getattr(self, name))
        if self.nbeta is not None:
            POSITIVE.read("nbeta", self.nbeta)
        if self.prior is not None:
            require_instance("prior", self.prior, Prior, "a Prior(...)")

    @classmethod
    def from_function(
        cls,
        loss: Callable[..., Any],
        at: Any,
        *,
        data: Any = None,
        n: float | None = None,
        nbeta: Any = None,
        localization: float | None = None,
        weights: Any = None,
        prior: Prior | None = None,
    ) -> "LocalPosterior":
        """Describe the posterior of a loss near a point; the arguments are the attributes."""
        return cls(loss, at, data, n, nbeta, localization, weights, prior)

    @classmethod
    def from_network(
        cls,
        network: Any,
        task: Any,
        *,
        key: Any = None,
        data: Any = None,
        per_position: bool = False,
        nbeta: Any = None,
        localization: float | None = None,
        weights: Any = None,
    ) -> "LocalPosterior":
        """Describe the posterior of a network's weights, near the network, under the task's loss on fixed prompts.

        Args:
            network: Predictor with floating-point arrays.
            task: Task that owns the loss.
            key: Key of the prompts; None: ``data`` has them.
            data: Prompts, or the number to draw; None: 4096.
            per_position: Whether positions are terms of the loss.
            nbeta: Inverse temperature; None: :math:`n/\\log n` with n prompts.
            localization: See the attributes.
            weights: See the attributes.

        Raises:
            InputError: The network is not one predictor with floating-point arrays that JAX can differentiate.
        """
        loss, at, prompts = network_loss(network, task, key=key, data=data, per_position=per_position)
        return cls(loss, at, prompts, None, nbeta, localization, weights)

    @classmethod
    def from_run(
        cls,
        run: Run,
        step: int | None = None,
        *,
        task: Any,
        data: Any,
        member: int = 0,
        per_position: bool = False,
        nbeta: Any = None,
        localization: float | None = None,
    ) -> "LocalPosterior":
        """Describe the posterior of one member of a training run, near its weights at one step.

        Only trained arrays move. Steps of one run, and its members, share one compiled program.

        Args:
            run: Training run.
            step: Step that the run kept; None: its end.
            task: Task that owns the loss; swept numbers are those of the member.
            data: Prompts.
            member: Number of the member.
            per_position: Whether positions are terms of the loss.
            nbeta: Inverse temperature; None: :math:`n/\\log n` with n prompts.
            localization: See the attributes.

        Raises:
            InputError: The step was not kept, or there is no such member.
        """
        require_instance("run", run, Run, "a training run, as icl.fit returns it")
        if isinstance(member, bool) or not isinstance(member, int | np.integer) or not 0 <= member < run.size:
            raise expected("member", f"an integer from 0 to {run.size - 1}", member)
        if step is not None and (isinstance(step, bool) or not isinstance(step, int | np.integer)):
            raise expected("step", "one step that was kept, or None", step, "along(...) joins the estimates of several")
        if data is None or isinstance(data, int):
            raise expected("data", "prompts", data, "task.sample_many(4096, key=key) draws them")
        prompts = prompts_for(task, data, key=None)
        prompt = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
        step = None if step is None else int(step)
        loss, at = run_loss(run, step, int(member), task, per_position=per_position, prompt=prompt, data=prompts)
        return cls(loss, at, prompts, None, nbeta, localization)

    def __repr__(self) -> str:
        return one_line("LocalPosterior", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("LocalPosterior", self._summary())

    def _summary(self) -> dict[str, object]:
        leaves = [leaf for leaf in jax.tree.leaves(self.at) if eqx.is_inexact_array(leaf)]
        fields = {"parameters": sum(np.size(leaf) for leaf in leaves), "n": self.n, "n beta": self.nbeta}
        fields |= {"localization": self.localization}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def count(self) -> float | None:
        """Number of samples n, given or that of the data; None without either."""
        return sample_count(self.data) if self.n is None and self.data is not None else self.n

    @property
    def temperature(self) -> float:
        r"""The one :math:`n\beta`, given or :math:`n/\log n`.

        Raises:
            InputError: There are several, or neither n nor :math:`n\beta`.
        """
        if self.nbeta is None:
            if self.count is None:
                hint = "or n, the number of samples, of which n / log n is the default"
                raise expected("nbeta", "a number", None, hint)
            if not self.count > 1:
                raise expected("n", "a finite number > 1", self.count)
            return self.count / math.log(self.count)
        if np.ndim(self.nbeta) != 0:
            raise expected("nbeta", "one number", self.nbeta, "free_energy takes several")
        return float(self.nbeta)

    @cached_property
    def part(self) -> tuple[Any, Any, Prior | None]:
        """The loss as a function of the weights that move, these weights at the point, and their prior."""
        if self.weights is None:
            return self.loss, self.at, self.prior
        return restricted_loss(self.loss, self.at, self.weights, self.data, self.prior)

    @property
    def whole_loss(self) -> Any:
        """The loss of all the data, as a function of the weights that move."""
        loss = self.part[0]
        return loss if self.data is None else eqx.Partial(loss_of_data, loss, self.data)

    def local_loss(self, block: int = BLOCK) -> LocalLoss:
        """Evaluate the loss at the point, in blocks of samples; a second call returns the same.

        Raises:
            InputError: The loss is not a finite scalar or vector there, or with data not the mean over samples.
        """
        if block not in self._local_losses:
            loss, at, prior = self.part
            require_mean(*vector_loss(loss, at, self.data))
            local = LocalLoss.from_loss(loss, at, self.data, block=block, pull=self.localization, prior=prior)
            self._local_losses[block] = local
        return self._local_losses[block]

    @cached_property
    def _local_losses(self) -> dict[int, LocalLoss]:
        return {}


FIELDS = ("at", "data", "n", "nbeta", "localization", "weights", "prior", "task", "per_position")
MOVED = dict.fromkeys(FIELDS, "an argument of LocalPosterior.from_function, from_network or from_run") | {
    "estimand": "learning_coefficient(...) for the limit, coefficient_at_temperature(...) for one temperature",
    "zero_shot": "context_coefficients(posterior, ZeroShot(...), key=key)",
    "sensitivity": "localization_slope of the result, or an estimate with another localization",
    "positions": "LocalPosterior.from_function with the loss of these positions",
}


def of_posterior(
    of_draws: str = "", *, position: int = 0
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function of a posterior so that a call in the spelling of version 0.3 is answered with the new one.

    ``of_draws`` is the name of the function of draws that answers the same question, and ``position`` that of the
    posterior among the positional arguments, 1 of a method.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            value, at = [*args[position:], kwargs.get("posterior", kwargs.get("loss")), None, None][:2]
            if value is None and not args[position:]:
                return function(*args, **kwargs)  # which lacks an argument
            if not isinstance(value, LocalPosterior):
                hint = _constructor(value, kwargs.get("at", kwargs.get("task", at)))
                if of_draws and type(value).__name__ in ("Draws", "Nodes", "Populations"):
                    hint = f"{of_draws}(...) is the function of draws"
                raise expected("posterior", "a LocalPosterior", kind_of(value), hint)
            for name in kwargs:
                if name in MOVED:
                    raise expected(name, "no such argument beside a posterior", kind_of(kwargs[name]), MOVED[name])
            return function(*args, **kwargs)

        return wrapped

    return decorate


def _constructor(value: Any, at: Any) -> str:
    """The constructor that makes a posterior of a run, a network before its task, or a function at a point."""
    if isinstance(value, Run):
        return "LocalPosterior.from_run(run, step, task=task, data=prompts, ...) makes one"
    if is_task(at):
        return "LocalPosterior.from_network(network, task, key=key, ...) makes one"
    return "LocalPosterior.from_function(loss, at, data=, n=, nbeta=, localization=, ...) makes one"
