"""The PyTorch side: models as trees, local training of whole cohorts (vectorised, compiled), evaluation.

Only this room, and rooms that build on PyTorch models, import PyTorch.
"""

from atoll.native import cache_folder

from .backend import device_of, prepare_worker
from .blocks.pool import CohortSums, TrainedBatch
from .custom import CustomLoop
from .evaluate import evaluate, evaluate_many, profile, profile_many
from .learner import TorchLearner, adapt, seeded
from .local import LocalTraining
from .losses import LOSSES, Objective
from .models import NamedInputs, buffers_of, init, load, params_of
from .network import FunctionalModule

__all__ = [
    "LOSSES",
    "CohortSums",
    "CustomLoop",
    "FunctionalModule",
    "LocalTraining",
    "NamedInputs",
    "Objective",
    "TorchLearner",
    "TrainedBatch",
    "adapt",
    "buffers_of",
    "cache_folder",
    "device_of",
    "evaluate",
    "evaluate_many",
    "init",
    "load",
    "params_of",
    "prepare_worker",
    "profile",
    "profile_many",
    "seeded",
]
