"""Posteriors of known answer: the measure that estimators of singular learning theory are held to."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.posteriors.answers import Answer
    from icllab.posteriors.calibration import Calibration, calibrate_sampler
    from icllab.posteriors.problems import Problem, difficulty, names, problem, version
    from icllab.posteriors.scores import score, summaries
    from icllab.posteriors.stored import digest, stored_answers
    from icllab.posteriors.torch_export import torch_module, write_torch

__all__ = ["names", "problem"]
__getattr__, __dir__ = attach(__name__)
