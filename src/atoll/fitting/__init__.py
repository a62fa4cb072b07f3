"""Models that follow from sums over rows, fitted over all parties: clusters, mixtures, components, naive Bayes, linear models and survival."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
