"""The facts that a report shows, from a result in memory or a run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from atoll.rounds.by_device import ByDevice
    from atoll.runs import RunFolder
    from atoll.simulation import Result

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True)
class Facts:
    """All facts of a report.

    Attributes:
        title: the run's name.
        status: finished, interrupted, failed or running.
        rows: one record a round.
        settings: the configuration as text.
        data: the partition in numbers.
        bytes: bytes and messages by direction.
        engine: name and choices.
        versions: versions of the software.
        citations: publications of the methods and data.
        reason: why the training stopped.
        started: when it began, if known.
        seconds: duration of the run.
        error: why it failed, if it did.
        comparison: alone, federated and pooled, if they were compared.
        devices: what each device did, once the training has ended.
        sites: whether real sites took part. Then what clients measured is their word, which the server cannot check.
        sections: what the kind of job shows; see `atoll.report.sections`.
        audit: what canaries say about the claimed epsilon, if the run had some.
        privacy: what the epsilon of the rows means: delta, unit, neighbours, adversary and accountant, if they have one.
    """

    title: str
    status: str
    rows: list[dict[str, Any]]
    settings: str
    data: dict[str, Any]
    bytes: dict[str, int] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    citations: list[str] = field(default_factory=list)
    reason: str = ""
    started: str | None = None
    seconds: float | None = None
    error: dict[str, Any] | None = None
    comparison: dict[str, Any] | None = None
    devices: ByDevice | None = None
    sections: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] | None = None
    sites: bool = False
    privacy: dict[str, Any] | None = None

    def word_of(self, name: str) -> str:
        """Who says what a metric is, for a label: nothing for what the server measured, or a simulation."""
        return "" if not self.sites or name.startswith("test/") else ", as the sites say"

    def last(self, name: str) -> Any:
        """The newest value of a metric; ``None`` if it was never measured."""
        return next((row[name] for row in reversed(self.rows) if row.get(name) is not None), None)

    def best(self, name: str) -> tuple[int, float] | None:
        """Round and value of the highest value of a metric."""
        found = [(row["round"], row[name]) for row in self.rows if row.get(name) is not None]
        return max(found, key=lambda pair: pair[1]) if found else None

    def total(self, name: str) -> int:
        """The sum of a column over the rounds."""
        return sum(int(row.get(name) or 0) for row in self.rows)


def facts_of(source: Any) -> Facts:
    """Gather the facts of a report.

    Args:
        source: a ``Result``, a ``RunFolder`` or the path of one.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: the source is none of these.
    """
    from atoll.runs import RunFolder
    from atoll.simulation import Result

    if isinstance(source, Result):
        return _of_result(source)
    if isinstance(source, str | Path):
        return _of_folder(RunFolder(source))
    if isinstance(source, RunFolder):
        return _of_folder(source)
    raise ConfigError(f"a report of a {type(source).__name__}", remedy="give a Result, or the path of a run folder")


def _of_folder(folder: RunFolder) -> Facts:
    from atoll.runs import yaml
    from atoll.runs.devices import read_devices
    from atoll.runs.kept import SECTIONS

    manifest, rows = folder.manifest(), folder.metrics()
    chosen = folder.settings()
    return Facts(
        title=folder.name,
        status=folder.status(),
        rows=rows,
        settings=yaml.dump(chosen),
        data=_json(folder.data_file),
        bytes=manifest.get("bytes") or {f"bytes_{way}": _sum(rows, f"bytes_{way}") for way in ("down", "up")},
        engine=manifest.get("engine") or {},
        versions=manifest.get("versions") or {},
        citations=manifest.get("citations") or [],
        reason=manifest.get("reason") or "",
        started=manifest.get("started"),
        seconds=manifest.get("seconds"),
        error=manifest.get("error"),
        comparison=_json(folder.path / "comparison.json") or None,
        devices=read_devices(folder.devices_file),
        sections=_list(folder.path / SECTIONS),
        audit=_json(folder.path / "audit.json") or None,
        sites="sites" in chosen,
        privacy=manifest.get("privacy"),
    )


def _sum(rows: list[dict[str, Any]], name: str) -> int:
    return sum(int(row.get(name) or 0) for row in rows)


def _list(path: Path) -> list[dict[str, Any]]:
    made = _content(path)
    return made if isinstance(made, list) else []


def _json(path: Path) -> dict[str, Any]:
    made = _content(path)
    return made if isinstance(made, dict) else {}


def _content(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the file cannot be read: {error}", where=str(path), remedy="restore the file, or remove it"
        ) from error


def _of_result(result: Result) -> Facts:
    from atoll.runs.versions import versions

    from .citations import cite
    from .partition import partition_facts

    job = result.job
    shown = [f"{name}: {getattr(job, name)!r}" for name in getattr(job, "__dataclass_fields__", {})]
    return Facts(
        title=f"Federated {job.kind or 'program'}",
        status="finished",
        rows=list(result.metrics),
        settings="\n".join(shown),
        data=partition_facts(result.data) if result.data is not None else {},
        bytes=dict(result.bytes),
        engine=dict(result.engine),
        sections=[dict(section) for section in result.prepared.sections(result.outcome)],
        versions=versions(),
        citations=cite(job, result.data),
        reason=result.reason,
        seconds=result.seconds,
        devices=result.devices,
        privacy=dict(result.prepared.facts(result.outcome)).get("privacy"),
    )
