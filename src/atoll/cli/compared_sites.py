"""What ``atoll fit`` and ``atoll trees`` share: a federation's result beside each site alone and all rows in one place, and the file of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.core.errors import ConfigError

from .output import PlainTable

__all__ = ["require_folder", "table_of"]


def require_folder(out: Path) -> None:
    """Refuse a file in a folder that does not exist, before anything is trained.

    Raises:
        ConfigError: there is no such folder.
    """
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no such folder", remedy="name a file in a folder that exists")


def table_of(found: dict[str, Any], title: str, shown: Callable[[Any], str]) -> PlainTable:
    """Return the measures of ``alone``, ``federated`` and ``pooled``, a row each.

    Args:
        found: the comparison.
        title: of the first column.
        shown: a measure as text.
    """
    table = PlainTable()
    table.add_column(title)
    table.add_column(found["measure"], justify="right")
    alone = {f"{name} alone": value for name, value in found["alone"].items()}
    for name, value in {**alone, "federated": found["federated"], "pooled": found["pooled"]}.items():
        table.add_row(name, shown(value))
    return table
