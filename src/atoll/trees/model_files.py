"""The file of an ensemble, in the form of the library that grew it."""

from __future__ import annotations

from .lightgbm_file import lightgbm_model
from .tree import Ensemble
from .xgboost_file import xgboost_model

__all__ = ["model_file", "model_file_name"]


def model_file(ensemble: Ensemble) -> bytes:
    """The ensemble as a model of its library.

    ``xgboost.Booster(model_file="model.json")`` loads it; if LightGBM grew the trees, ``lightgbm.Booster(model_file="model.txt")`` does.
    """
    return lightgbm_model(ensemble) if ensemble.library == "lightgbm" else xgboost_model(ensemble)


def model_file_name(library: str) -> str:
    """The usual name of such a file."""
    return "model.txt" if library == "lightgbm" else "model.json"
