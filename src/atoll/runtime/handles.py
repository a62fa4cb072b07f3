"""How many files and connections a process may have open: as many as the system lets it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["EACH", "OWN", "Handles", "allowed_handles", "raise_handles"]

_LOG = logging.getLogger("atoll.runtime")

OWN = 256
"""Handles of a front that have nothing to do with its sites: store, libraries, people, visitors that are not let in yet."""
EACH = 2
"""Handles a site: its connection, and a reply that waits in a file."""
_PLENTY = 1 << 20


@dataclass(frozen=True)
class Handles:
    """The limits of a process (RLIMIT_NOFILE of getrlimit(2)).

    Attributes:
        soft: what counts now.
        hard: what it may be raised to; a limit that is none counts as 1,048,576.
    """

    soft: int
    hard: int

    @property
    def sites(self) -> int:
        """For how many sites at once the hard limit suffices."""
        return max(0, (self.hard - OWN) // EACH)


def allowed_handles() -> Handles | None:
    """The limits of this process; None where the system has none."""
    try:
        import resource
    except ImportError:  # not POSIX
        return None
    soft, hard = (_PLENTY if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Handles(soft, hard)


def raise_handles(sites: int = 1000) -> Handles | None:
    """Raise the soft limit of this process, and of those that it starts, to the hard one; say so in the log where that is low.

    Args:
        sites: for how many it shall suffice.

    Returns:
        The limits afterwards; None where the system has none.
    """
    found = allowed_handles()
    if found is None:
        return None
    import resource

    if found.soft < found.hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (found.hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (ValueError, OSError) as error:  # some systems have a lower bound of their own
            _LOG.info("the limit of %d open files stays: %s", found.soft, error)
    if found.sites < sites:
        _LOG.warning(
            "this process may open %d files at most, enough for about %d sites at once: raise the hard limit for more (ulimit -Hn, or LimitNOFILE= of a service)",
            found.hard, found.sites,
        )  # fmt: skip
    return allowed_handles()
