"""The PyTorch side: models, local training of cohorts, evaluation. The only room that imports PyTorch."""

from .learner import TorchLearner, adapt
from .local import LocalTraining

__all__ = ["LocalTraining", "TorchLearner", "adapt"]
