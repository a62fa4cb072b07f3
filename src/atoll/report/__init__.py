"""Reports: a page about a run, the comparison of runs, and trackers."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
