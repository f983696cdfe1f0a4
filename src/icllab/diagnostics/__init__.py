"""Measurements of any predictor on any task."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.behaviour.answers import heaviest_share
    from icllab.diagnostics.behaviour.head_effects import head_effects
    from icllab.diagnostics.behaviour.heads import head_scores
    from icllab.diagnostics.behaviour.item_label_heads import StatedHead, item_label_measures, progress_measures
    from icllab.diagnostics.behaviour.length_gradients import gradient_shares
    from icllab.diagnostics.behaviour.lengths import accuracy, context_accuracy, per_length
    from icllab.diagnostics.behaviour.scores import icl_scores
    from icllab.diagnostics.circuits.lens_by_token import token_lens
    from icllab.diagnostics.circuits.logit_attribution import logit_terms
    from icllab.diagnostics.circuits.patching import logit_difference, patch
    from icllab.diagnostics.circuits.task_vectors import task_vector
    from icllab.diagnostics.contexts.first_steps import gradient_step_comparison
    from icllab.diagnostics.contexts.laws import context_law
    from icllab.diagnostics.contexts.lens import logit_lens
    from icllab.diagnostics.contexts.map_tests import MapTests
    from icllab.diagnostics.contexts.maps import ContextMap, context_map
    from icllab.diagnostics.contexts.queries import QuerySource
    from icllab.diagnostics.contexts.ranks import ContextRank, context_rank
    from icllab.diagnostics.contexts.solvers import MapSolver
    from icllab.diagnostics.curvature.spectra import (
        SpectrumSolver,
        effective_dimension,
        fisher_spectrum,
        hessian_spectrum,
    )
    from icllab.diagnostics.curves.breakpoints import BreakRule, change_points
    from icllab.diagnostics.curves.survival import delay, kaplan_meier
    from icllab.diagnostics.curves.transition_times import transitions
    from icllab.diagnostics.identification.candidates import Fitted
    from icllab.diagnostics.identification.comparison import PromptSplit, identify
    from icllab.diagnostics.identification.layer_probe import probe_layers
    from icllab.diagnostics.identification.mixtures import mixture_weight
    from icllab.diagnostics.identification.verdicts import VerdictRule
    from icllab.diagnostics.identification.weights import interpolate, weight_distance
    from icllab.diagnostics.sampling.covariances import weight_covariance
    from icllab.diagnostics.sampling.draws import posterior_draws
    from icllab.diagnostics.sampling.hmc import HMC
    from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
    from icllab.diagnostics.sampling.mala import MALA
    from icllab.diagnostics.sampling.nuts import NUTS
    from icllab.diagnostics.sampling.priors import Prior
    from icllab.diagnostics.sampling.rmsprop_sgld import RMSpropSGLD
    from icllab.diagnostics.sampling.sgld import SGLD
    from icllab.diagnostics.sampling.sgnht import SGNHT
    from icllab.diagnostics.sampling.smc import SMC
    from icllab.diagnostics.singular.coefficient_curves import along
    from icllab.diagnostics.singular.coefficients import (
        coefficient_at_temperature,
        coefficient_of_draws,
        learning_coefficient,
    )
    from icllab.diagnostics.singular.few_and_zero_shot import ZeroShot, context_coefficients
    from icllab.diagnostics.singular.fluctuations import singular_fluctuation
    from icllab.diagnostics.singular.free_energies import free_energy, free_energy_of_populations, free_energy_slope
    from icllab.diagnostics.singular.learning_machines import LearningMachine
    from icllab.diagnostics.singular.length_divergences import divergences
    from icllab.diagnostics.singular.phases import phase_weights, sampled_crossings
    from icllab.diagnostics.susceptibilities.influence import hessian_influence, influence
    from icllab.diagnostics.susceptibilities.linear_response import LinearResponse
    from icllab.diagnostics.susceptibilities.patterning import patterning
    from icllab.diagnostics.susceptibilities.quadrature import Quadrature
    from icllab.diagnostics.susceptibilities.tilts import susceptibility, susceptibility_of_draws
    from icllab.diagnostics.validate_predictor import require_causal

__all__ = [
    "LocalPosterior",
    "change_points",
    "coefficient_at_temperature",
    "context_map",
    "context_rank",
    "free_energy",
    "head_scores",
    "icl_scores",
    "identify",
    "influence",
    "learning_coefficient",
    "patch",
    "patterning",
    "per_length",
    "probe_layers",
    "susceptibility",
    "task_vector",
    "transitions",
]
__getattr__, __dir__ = attach(__name__)
