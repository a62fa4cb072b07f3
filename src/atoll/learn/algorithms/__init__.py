"""Algorithms, one idea a file."""

from .fedavg import FedAvg
from .fedsgd import FedSGD

__all__ = ["FedAvg", "FedSGD"]
