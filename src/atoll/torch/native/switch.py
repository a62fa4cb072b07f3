"""The switch that turns native code off."""

from __future__ import annotations

import os

from atoll.core.errors import ConfigError

__all__ = ["enabled"]

_VARIABLE = "ATOLL_NATIVE"


def enabled() -> bool:
    """Tell whether native code may be made here: ``ATOLL_NATIVE=0`` in the environment turns it off.

    Raises:
        ConfigError: the variable is neither 0 nor 1.
    """
    given = os.environ.get(_VARIABLE, "1")
    if given not in ("0", "1"):
        raise ConfigError(f"{_VARIABLE}={given!r}", where="the environment", remedy="use 0 (off) or 1 (on)")
    return given == "1"
