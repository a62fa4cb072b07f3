"""The engine between real organisations: tasks run where the data is, and the state that they leave stays there.

``Network`` is the server's half, ``SiteEngine`` a site's. Messages of `atoll.core` pass between them over any link, in
both directions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Network
    from .site_engine import SiteEngine
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "engine": ("Network",),
            "site_engine": ("SiteEngine",),
        },
    )

__all__ = ["Network", "SiteEngine"]
