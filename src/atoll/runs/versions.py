"""The versions of the software that a run used."""

from __future__ import annotations

import platform
from importlib import metadata

__all__ = ["versions"]

_PACKAGES = ("numpy", "torch", "scikit-learn", "pyarrow", "pydantic", "matplotlib")


def versions() -> dict[str, str]:
    """Installed versions of Atoll, Python, the system and every library that may change a result."""
    from atoll import __version__

    found = {"atoll": __version__, "python": platform.python_version(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
