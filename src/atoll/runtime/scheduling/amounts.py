"""Amounts of CPUs, memory and GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError

__all__ = ["Resources", "bytes_of"]

_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{p}{end}": 1024 ** (i + 1) for i, p in enumerate("kmgt") for end in ("ib", "i")},
}
_UNITS |= {f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgt")}
_MOST = 2**53
"""The largest whole number up to which a float counts exactly; no machine has more."""


def bytes_of(said: int | str, where: str = "memory") -> int:
    """Return a size in bytes: a number, or a number with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024).

    Raises:
        ConfigError: it is not a size.
    """
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return said
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([a-zA-Z]*)\s*", said) if isinstance(said, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(
            f"{where}={said!r} is not a size", where=where, remedy="write for example 4GiB, or a number of bytes"
        )
    unit: int = _UNITS[found[2].lower()]
    return math.ceil(float(found[1]) * unit)


@dataclass(frozen=True)
class Resources:
    """An amount of everything that a site hands out.

    Attributes:
        cpus: processor cores; 0.5 is half of one. Thousandths are the smallest unit.
        memory: bytes.
        gpus: whole devices.
    """

    cpus: float = 0.0
    memory: int = 0
    gpus: int = 0

    def __post_init__(self) -> None:
        for name, value in (("cpus", self.cpus), ("memory", self.memory), ("gpus", self.gpus)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
                raise ConfigError(f"{name}={value!r}", where="resources", remedy="use a number from 0 to 2**53")
            if name != "cpus" and not isinstance(value, int):
                raise ConfigError(f"{name}={value!r}", where="resources", remedy="use a whole number")

    @classmethod
    def of(cls, tree: Any) -> Resources:
        """Return the inverse of ``tree``.

        Raises:
            ConfigError: it is not such a tree.
        """
        if not isinstance(tree, Mapping) or not set(tree) <= {"cpus", "memory", "gpus"}:
            raise ConfigError(f"{tree!r} are not resources", remedy="name cpus, memory and gpus")
        return cls(**tree)

    def tree(self) -> dict[str, Any]:
        """Return a plain tree, for a message."""
        return {"cpus": self.cpus, "memory": self.memory, "gpus": self.gpus}

    @property
    def units(self) -> tuple[int, int, int]:
        """Return thousandths of a core, bytes, devices: whole numbers, so that sums are exact."""
        return math.ceil(round(self.cpus * 1000, 6)), self.memory, self.gpus

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs, {self.memory / 2**30:.3g} GiB, {self.gpus} GPUs"
