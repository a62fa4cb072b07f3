"""Ready-made models, and models of your own: linear, quadratic and matrix problems in NumPy, PyTorch networks, scikit-learn estimators, your own loop or script.

A model's tasks keep the names that they had before this room existed, because names of tasks seed random numbers.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
