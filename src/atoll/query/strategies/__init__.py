"""Strategies: ways to answer a statement. Each says whether it can, and what that costs and gives away; ``auto`` takes the cheapest that can.

A strategy is one file here with one class below `Strategy`, and one line in the stub.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
