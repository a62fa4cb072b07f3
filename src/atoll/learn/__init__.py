"""Horizontal learning: algorithms, selection, pacing, evaluation and the training job that composes them."""

from .algorithm import Algorithm, LocalWork, RoundInfo
from .algorithms import FedAvg, FedSGD
from .evaluation import Evaluation
from .history import History
from .linear import Linear
from .pacing import Synchronous
from .rounds import StopTraining
from .selection import Everyone, Schedule, Selection, Uniform
from .stop import MaxTime, Patience, StopRule, Target
from .training import Trained, Training

__all__ = [
    "Algorithm",
    "Evaluation",
    "Everyone",
    "FedAvg",
    "FedSGD",
    "History",
    "Linear",
    "LocalWork",
    "MaxTime",
    "Patience",
    "RoundInfo",
    "Schedule",
    "Selection",
    "StopRule",
    "StopTraining",
    "Synchronous",
    "Target",
    "Trained",
    "Training",
    "Uniform",
]
