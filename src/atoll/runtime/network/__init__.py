"""The engine between real organisations: tasks run where the data are, and what they leave behind stays there.

``Network`` is the server's half, ``Resident`` a site's. Messages of `atoll.core` pass between them over any link, in both directions.
"""

from .engine import Network
from .resident import Resident

__all__ = ["Network", "Resident"]
