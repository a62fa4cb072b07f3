"""Programs that are no training: consensus by ADMM, related models, matrix factorisation, bandits, convex problems, and surveys of clients' data.

Run them from Python: ``atoll.simulate(made.program, islands)``.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
