"""What reports know of a run, from its folder or from its result: rows, data, privacy, and what to cite."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from atoll.rounds.by_device import ByDevice
    from atoll.runs import RunFolder
    from atoll.simulation import Result

__all__ = ["NAMED", "Facts", "cite", "facts_of", "partition_facts", "summarise_data"]


# What to cite: the publications of the methods and data in a job.


def cite(job: Any, islands: Any = None) -> list[str]:
    """The publications behind a job's parts, each once, in the order of the parts.

    A part declares its own in the class attribute ``citation``; parts inside other parts count too.

    Args:
        job: the training.
        islands: its data, which declare their own too.
    """
    found = [str(part.citation) for part in _find_parts(job) if getattr(part, "citation", "")]
    about = getattr(islands, "about", None)
    if about is not None and about.citation:
        found.append(about.citation)
    return list(dict.fromkeys(found))


def _find_parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _find_parts(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in dataclasses.fields(value):
            yield from _find_parts(getattr(value, field.name))


# A partition in a few numbers, enough to draw it again without the data.


NAMED = 20
"""Most clients that pictures show by name; more are counted in bins."""
_SHOWN = 60
_BINS = 24


def partition_facts(islands: Any) -> dict[str, Any]:
    """Sizes, label skew and the class counts of some clients, as plain numbers; class and feature names in the order of outputs and inputs.

    Args:
        islands: the federated data set; if it cannot be described, only its number of clients is returned.
    """
    if not hasattr(islands, "describe"):
        return {"clients": len(islands)}
    seen = islands.describe()
    edges = _edges_of_bins(seen.sizes)
    few = seen.clients <= NAMED
    facts: dict[str, Any] = {
        "name": seen.name,
        "scheme": seen.scheme,
        "clients": int(seen.clients),
        "rows": int(seen.rows),
        "test_rows": 0 if islands.test is None else len(islands.test),
        **_count_held_out(islands),
        "task": islands.task,
        "labels": list(islands.about.labels),
        "features": list(islands.about.features),
        "size_mean": seen.size_mean,
        "size_std": seen.size_std,
        "size_quantiles": {str(k): v for k, v in seen.size_quantiles.items()},
        "size_edges": edges.tolist(),
        "size_counts": np.histogram(seen.sizes, edges)[0].tolist(),
        **({"client_names": [str(name) for name in islands.names], "client_sizes": seen.sizes.tolist()} if few else {}),
        "classes_per_client": seen.classes_per_client,
        "label_skew": seen.label_skew,
        "corrupted": dict(seen.corrupted),
        "table": seen.table(),
    }
    if seen.counts is not None and len(seen.counts):
        shown = np.unique(np.linspace(0, len(seen.counts) - 1, min(_SHOWN, len(seen.counts))).astype(int))
        facts |= {"class_names": list(seen.classes), "class_counts": seen.counts[shown].tolist()}
    return facts


def _count_held_out(islands: Any) -> dict[str, int | None]:
    """Rows that clients hold out, and how many clients do; ``None`` where each site alone knows it."""
    held, rows = getattr(islands, "held_out", None), getattr(islands, "held_rows", None)
    if rows is None and not hasattr(islands, "with_held_out"):
        return {"held_out": None, "holding_out": None}
    rows = rows if rows is not None else np.zeros(0) if held is None else held.sizes
    return {"held_out": int(rows.sum()), "holding_out": int(np.count_nonzero(rows))}


def _edges_of_bins(sizes: np.ndarray) -> np.ndarray:
    """Bins that each contain equally many whole numbers."""
    low, high = int(sizes.min()), int(sizes.max())
    step = max(1, -(-(high - low + 1) // _BINS))
    return np.arange(low, high + step + 1, step) - 0.5


def summarise_data(islands: Any, path: Path) -> None:
    """Write the facts of a partition to a run folder.

    Raises:
        CheckpointError: the file cannot be written.
    """
    from atoll.core.persistence.files import as_json, write_bytes

    write_bytes(path, as_json(partition_facts(islands), indent=1).encode())


@dataclass(frozen=True)
class Facts:
    """All facts of a report.

    Attributes:
        title: the name of the run or job.
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
        sections: what the kind of job shows; see `atoll.report.page`.
        audit: what canaries say about the claimed epsilon, if the run had some.
        result: short plain facts about the outcome.
        privacy: what the epsilon of the rows means: delta, unit, neighbours, adversary and accountant, if they have one.
        notices: what whoever reads the result should know of it, a sentence each.
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
    result: Any = None
    notices: tuple[str, ...] = ()

    def word_of(self, name: str) -> str:
        """Who says what a metric is, for a label: nothing for what the server measured, or a simulation."""
        return "" if not self.sites or name.startswith("test/") else ", as the sites say"

    def rows_of(self, name: str) -> str:
        """On which rows clients measured, for a label: nothing for what the server measured."""
        if not name.startswith(("clients/", "personal/")):
            return ""
        holding = self.data.get("holding_out")
        if self.sites and (holding is None or 0 < holding < self.data["clients"]):
            return ", held-out or training rows"
        return ", held-out rows" if self.data.get("held_out") else ", training rows"

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
        return _read_result(source)
    if isinstance(source, str | Path):
        return _read_folder(RunFolder(source))
    if isinstance(source, RunFolder):
        return _read_folder(source)
    raise ConfigError(f"a report of a {type(source).__name__}", remedy="give a Result, or the path of a run folder")


def _read_folder(folder: RunFolder) -> Facts:
    from atoll.runs import yaml
    from atoll.runs.folder import read_devices
    from atoll.runs.kept import SECTIONS

    manifest, rows = folder.manifest(), folder.metrics()
    chosen = folder.settings()
    return Facts(
        # The folder of a job between sites is called by its place at the server, so the settings have its name.
        title=str(chosen.get("name") or folder.name) if "sites" in chosen else folder.name,
        status=folder.status(),
        rows=rows,
        settings=yaml.dump(chosen),
        data=_read_json(folder.data_file),
        bytes=manifest.get("bytes") or {f"bytes_{way}": _sum_column(rows, f"bytes_{way}") for way in ("down", "up")},
        engine=manifest.get("engine") or {},
        versions=manifest.get("versions") or {},
        citations=manifest.get("citations") or [],
        reason=manifest.get("reason") or "",
        started=manifest.get("started"),
        seconds=manifest.get("seconds"),
        error=manifest.get("error"),
        comparison=_read_json(folder.path / "comparison.json") or None,
        devices=read_devices(folder.devices_file),
        sections=_read_lines(folder.path / SECTIONS),
        audit=_read_json(folder.path / "audit.json") or None,
        sites="sites" in chosen,
        privacy=manifest.get("privacy"),
        result=manifest.get("result"),
        notices=tuple(manifest.get("notices") or ()),
    )


def _sum_column(rows: list[dict[str, Any]], name: str) -> int:
    return sum(int(row.get(name) or 0) for row in rows)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    made = _parse_json(path)
    return made if isinstance(made, list) else []


def _read_json(path: Path) -> dict[str, Any]:
    made = _parse_json(path)
    return made if isinstance(made, dict) else {}


def _parse_json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the file cannot be read: {error}", where=str(path), remedy="restore the file, or remove it"
        ) from error


def _read_result(result: Result) -> Facts:
    from atoll.runs.versions import versions

    job, found = result.job, dict(result.prepared.facts(result.outcome))
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
        privacy=found.get("privacy"),
        result=found.get("result"),
        notices=result.notices,
    )
