"""Private summaries of data that may not move: points of a public set that stand for the parties' rows."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
