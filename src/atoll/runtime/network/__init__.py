"""The engine between real organisations: tasks run where the data are, and what they leave behind stays there.

``Network`` is the server's half, ``Resident`` a site's. Messages of `atoll.core` pass between them over any link, in both directions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Network
    from .resident import Resident
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "engine": ("Network",),
            "resident": ("Resident",),
        },
    )

__all__ = ["Network", "Resident"]
