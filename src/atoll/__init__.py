"""Atoll: federated computing for Python. Learn, query and find the truth over data that may not move.

`import atoll` loads NumPy only; everything else is loaded when it is first used.
"""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
__version__ = "0.1.0"
