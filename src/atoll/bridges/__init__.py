"""Bridges: what was written for other frameworks runs unchanged on Atoll. Flower's apps, scripts of NVFlare's client API, MONAI's bundles."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
