"""Selection: which clients a round invites, and whose replies it takes."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
