"""Decision trees over all parties: boosted on sums of histograms, or grown by each party and bagged."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
