"""Ready-made models, and models of your own: linear, quadratic and matrix problems in NumPy, PyTorch networks, scikit-learn estimators, your own loop or script.

A model's tasks keep the names that they had before this room existed, because names of tasks seed random numbers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .custom import CustomLearner
    from .idle import IdleIslands, IdleModel
    from .linear_model import Linear, linear
    from .matrix import MatrixRegression
    from .monai import MonaiBundle, monai_bundle
    from .networks import cnn, logistic, mlp
    from .quadratic import Quadratic
    from .scripts.script import Script, script
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "custom": ("CustomLearner",),
            "idle": ("IdleIslands", "IdleModel"),
            "linear_model": ("Linear", "linear"),
            "matrix": ("MatrixRegression",),
            "monai": ("MonaiBundle", "monai_bundle"),
            "networks": ("cnn", "logistic", "mlp"),
            "quadratic": ("Quadratic",),
            "scripts.script": ("Script", "script"),
        },
    )

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
