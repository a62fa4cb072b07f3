"""Trackers: callbacks that send each round's record to other programs."""

from .mlflow import MLflow
from .tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
