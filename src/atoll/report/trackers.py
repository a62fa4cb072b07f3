"""Trackers: callbacks that tell other programs of every round."""

from .mlflow import MLflow
from .tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard"]
