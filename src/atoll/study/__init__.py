"""Studies: arms × seeds × data. Every comparison runs here: sweeps, baselines, methods for missing labels, the cost of privacy.

An *arm* is a job, or a function that measures something itself. A study runs each arm under each *seed*, in a folder of its own, over all cores, and
resumes; its *result* compares the arms in pairs of the same seed. A run that has finished is not repeated as long as the code of your own classes and
functions is the same.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
