"""Algorithms, one idea a file."""

from .fedavg import FedAvg
from .fedsgd import FedSGD
from .statistics import SufficientStatistics

__all__ = ["FedAvg", "FedSGD", "SufficientStatistics"]
