"""What a run reached, in one small record."""

from __future__ import annotations

from typing import Any

from .folder import RunFolder

__all__ = ["result_of"]


def result_of(folder: RunFolder) -> dict[str, Any]:
    """What a run reached, from its folder."""
    manifest, rows = folder.manifest(), folder.metrics()

    def last(name: str) -> Any:
        return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)

    return {
        "run": folder.name,
        "folder": str(folder.path),
        "status": manifest["status"],
        "reason": manifest.get("reason"),
        "rounds": len(rows),
        "accuracy": last("test/accuracy"),
        "loss": last("test/loss"),
        "rejected": sum(int(row.get("rejected") or 0) for row in rows),
        "bytes_up": sum(int(row.get("bytes_up") or 0) for row in rows),
        "bytes_down": sum(int(row.get("bytes_down") or 0) for row in rows),
        "seconds": manifest.get("seconds"),
        "engine": manifest.get("engine"),
        "model": str(folder.model_file),
        "report": str(folder.report_file) if folder.report_file.exists() else None,
    }
