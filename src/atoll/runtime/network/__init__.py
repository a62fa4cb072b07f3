"""The engine between real organisations: tasks run where the data is, and the state that they leave stays there.

``Network`` is the server's half, ``SiteEngine`` a site's. Messages of `atoll.core` pass between them over any link, in
both directions.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
