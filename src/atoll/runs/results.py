"""The results of a run in one small record."""

from __future__ import annotations

from typing import Any

from .config import DEFAULT_JOB
from .folder import RunFolder

__all__ = ["result_of"]


def result_of(folder: RunFolder) -> dict[str, Any]:
    """The results of a run, read from its folder; with ``"result"`` for a program whose result is short and plain."""
    manifest, rows = folder.manifest(), folder.metrics()

    def total(way: str) -> int:
        if rows and any(way in row for row in rows):
            return sum(int(row.get(way) or 0) for row in rows)
        return int((manifest.get("bytes") or {}).get(way) or 0)  # the records of a program may lack it

    return {
        "run": folder.name,
        "folder": str(folder.path),
        "status": manifest["status"],
        "reason": manifest.get("reason"),
        "rounds": len(rows),
        "job": folder.settings().get("job", DEFAULT_JOB),
        **folder.reached(),
        "rejected": sum(int(row.get("rejected") or 0) for row in rows),
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down"),
        "seconds": manifest.get("seconds"),
        "engine": manifest.get("engine"),
        "devices": manifest.get("devices"),
        "model": str(folder.model_file) if folder.model_file.exists() else None,
        "report": str(folder.report_file) if folder.report_file.exists() else None,
        **({"result": manifest["result"]} if "result" in manifest else {}),
    }
