"""Ready-made models, and models of your own: linear, quadratic and matrix problems in NumPy, PyTorch networks, scikit-learn estimators, your own loop or script.

A model's tasks keep the names that they had before this room existed, because names of tasks seed random numbers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .custom import CustomLearner
    from .idle import IdleIslands, IdleModel
    from .linear_model import Linear, linear
    from .matrix import MatrixRegression
    from .networks import cnn, logistic, mlp
    from .quadratic import Quadratic
    from .scripts import Script, script
else:
    import importlib

    from atoll.core.lazy import lazy

    def __getattr__(name: str) -> object:
        if name in ("MonaiBundle", "monai_bundle"):  # their address before they were a bridge
            return getattr(importlib.import_module("atoll.bridges"), name)
        return _find(name)

    _find, __dir__ = lazy(
        __name__,
        {
            "custom": ("CustomLearner",),
            "idle": (
                "IdleIslands",
                "IdleModel",
            ),
            "linear_model": (
                "Linear",
                "linear",
            ),
            "matrix": ("MatrixRegression",),
            "networks": (
                "cnn",
                "logistic",
                "mlp",
            ),
            "quadratic": ("Quadratic",),
            "scripts": (
                "Script",
                "script",
            ),
        },
    )

if TYPE_CHECKING:  # their address before they were a bridge
    from atoll.bridges.monai import MonaiBundle, monai_bundle

__all__ = [
    "CustomLearner",
    "IdleIslands",
    "IdleModel",
    "Linear",
    "MatrixRegression",
    "MonaiBundle",
    "Quadratic",
    "Script",
    "cnn",
    "linear",
    "logistic",
    "mlp",
    "monai_bundle",
    "script",
]
