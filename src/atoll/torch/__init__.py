"""The PyTorch side: models as trees, local training of whole cohorts (vectorised, compiled), evaluation.

Only this room, and rooms that build on PyTorch models, import PyTorch.
"""

from atoll.native import cache_folder

from .backend import device_of, prepare_worker
from .blocks.results import CohortSums, TrainedBatch
from .custom import CustomLoop
from .evaluate import evaluate, evaluate_many
from .learner import TorchLearner, adapt, seeded
from .local import LocalTraining
from .losses import LOSSES, Objective
from .models import buffers_of, init, load, params_of
from .named_inputs import NamedInputs
from .network import FunctionalModule
from .profile import profile, profile_many

__all__ = [
    "LOSSES",
    "CustomLoop",
    "LocalTraining",
    "FunctionalModule",
    "NamedInputs",
    "Objective",
    "CohortSums",
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
