"""How many files and connections a process may open: as many as the system allows."""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["EACH", "OWN", "Handles", "allowed_handles", "raise_handles"]

_LOG = logging.getLogger("atoll.runtime")

OWN = 256
"""Handles that a daemon needs besides its sites: store, libraries, people, and visitors not admitted yet."""
EACH = 2
"""Handles for each site: its connection, and a reply waiting in a file."""
_PLENTY = 1 << 20


@dataclass(frozen=True)
class Handles:
    """The limits of a process (RLIMIT_NOFILE of getrlimit(2)).

    Attributes:
        soft: the limit in force.
        hard: the most that ``soft`` may be raised to; no limit counts as 1,048,576.
    """

    soft: int
    hard: int

    @property
    def sites(self) -> int:
        """Return how many sites at once the hard limit is enough for."""
        return max(0, (self.hard - OWN) // EACH)


def allowed_handles() -> Handles | None:
    """Return the limits of this process; None if the system has none."""
    try:
        import resource
    except ImportError:  # not POSIX
        return None
    soft, hard = (_PLENTY if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Handles(soft, hard)


def raise_handles(sites: int = 1000) -> Handles | None:
    """Raise the soft limit of this process and its children to the hard limit; log a message if that is low.

    Args:
        sites: how many sites it should be enough for.

    Returns:
        The new limits; None if the system has none.
    """
    found = allowed_handles()
    if found is None:
        return None
    import resource

    if found.soft < found.hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (found.hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (ValueError, OSError) as error:  # some systems have a lower limit of their own
            _LOG.info("the limit of %d open files stays: %s", found.soft, error)
    if found.sites < sites:
        _LOG.warning(
            "this process may open %d files at most, enough for about %d sites at once: raise the hard limit for more (ulimit -Hn, or LimitNOFILE= of a service)",
            found.hard, found.sites,
        )  # fmt: skip
    return allowed_handles()
