"""Rules: what a table function in FROM stands for, such as ``FROM Skyline(hotels, price, -stars)``. See `registry`, which also makes one of your own.

A rule of Atoll is one file here with one function, and one line in the stub.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
