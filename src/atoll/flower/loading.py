"""An app's own objects, by name."""

from __future__ import annotations

import functools
from typing import Any

from atoll.core.addresses import load_object
from atoll.core.errors import ConfigError

__all__ = ["loaded_app"]


@functools.lru_cache(maxsize=8)
def loaded_app(where: str, kind: str) -> Any:
    """Return the app of a name.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return load_object(where)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{kind} {where!r} cannot be imported: {error}",
            where="Flower's app",
            remedy="install what the app depends on, and correct its name",
        ) from error
