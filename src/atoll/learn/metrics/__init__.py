"""Metrics of a model's scores, as commutative monoids: clients' sums add up to the metric of the pooled data.

======================  ==================================================================  =======================
metric                  results                                                             scores, targets
======================  ==================================================================  =======================
``Accuracy``            accuracy                                                            classes
``TopKAccuracy(k)``             top_k_accuracy                                                      classes
``Confusion(classes)``  precision, recall, f1 (``_macro``, ``_weighted``), the matrix       classes
``LogLoss``             log_loss                                                            classes
``Calibration(bins)``   calibration_error                                                   classes
``SquaredError``        mse, rmse                                                           numbers
``AbsoluteError``       mae                                                                 numbers
``R2``                  r2                                                                  numbers
``RelativeAccuracy``    relative_accuracy                                                   numbers > 0
``HingeLoss``           hinge_loss                                                          one score, -1/+1
``SignAccuracy``        sign_accuracy                                                       one score, -1/+1
======================  ==================================================================  =======================

`HumanTime` is not a score: it converts a round's bytes and computing into seconds on real devices.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import ScoreMetric, pack_metric, unpack_metric
    from .classification import Accuracy, Calibration, Confusion, LogLoss, TopKAccuracy
    from .hinge import HingeLoss, SignAccuracy
    from .human_time import HumanTime
    from .regression import R2, AbsoluteError, RelativeAccuracy, SquaredError
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": ("ScoreMetric", "pack_metric", "unpack_metric"),
            "classification": ("Accuracy", "Calibration", "Confusion", "LogLoss", "TopKAccuracy"),
            "hinge": ("HingeLoss", "SignAccuracy"),
            "human_time": ("HumanTime",),
            "regression": ("R2", "AbsoluteError", "RelativeAccuracy", "SquaredError"),
        },
    )

__all__ = [
    "R2",
    "AbsoluteError",
    "Accuracy",
    "Calibration",
    "Confusion",
    "HingeLoss",
    "HumanTime",
    "LogLoss",
    "RelativeAccuracy",
    "ScoreMetric",
    "SignAccuracy",
    "SquaredError",
    "TopKAccuracy",
    "pack_metric",
    "unpack_metric",
]
