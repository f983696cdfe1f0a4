"""Training with one compiled loop for a predictor or a whole ensemble, and runs that survive a kill.

Seeds and swept numbers share one leading axis, ``member``. A member's prompts depend on its seed and the step alone,
so a run that is cut anywhere goes on to the same bits.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.training.checkpoints import CheckpointStore
    from icllab.training.compilation import cache_compilations, compile_quickly
    from icllab.training.devices import split_processor
    from icllab.training.ensembles import Ensemble, ensemble
    from icllab.training.finished_runs import load
    from icllab.training.fitting import fit
    from icllab.training.logs import Following, TensorBoard, WeightsAndBiases, log
    from icllab.training.records import Record
    from icllab.training.runs import Run, Trajectory
    from icllab.training.stopping import Divergence, Plateau, TargetLoss, Until
    from icllab.training.streams import Fixed, Fresh
    from icllab.training.sweeps import Sweep
    from icllab.training.train_loop import TrainingInterrupted

__all__ = ["Fixed", "Fresh", "Record", "Sweep", "Until"]
__getattr__, __dir__ = attach(__name__)
