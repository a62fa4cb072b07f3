"""The record of a run's devices in its folder: written at the end, read by reports and commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.persistence.files import write_bytes
from atoll.core.persistence.json_lines import as_json

if TYPE_CHECKING:
    from atoll.rounds.by_device import ByDevice

__all__ = ["devices_table", "read_devices", "write_devices"]


def write_devices(path: Path, devices: ByDevice) -> None:
    """Write the columns to a file.

    Raises:
        CheckpointError: the file cannot be written.
    """
    write_bytes(path, as_json(devices.packed()).encode() + b"\n")


def read_devices(path: Path) -> ByDevice | None:
    """Read the columns; ``None`` without a file: the run has not ended, or is not a training.

    Raises:
        CheckpointError: the file cannot be read, or is damaged.
    """
    from atoll.rounds.by_device import ByDevice

    if not path.exists():
        return None
    try:
        return ByDevice.unpacked(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise CheckpointError(
            f"the record of the devices cannot be read: {getattr(error, 'what', error)}",
            where=str(path),
            remedy="restore the file, or remove it: it is not needed for the rest of the run",
        ) from error


def devices_table(devices: ByDevice) -> str:
    """One line per device, separated by commas, below a line with the names of the columns."""
    rows, text = list(devices.rows()), io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
