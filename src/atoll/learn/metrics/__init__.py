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

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
