"""A run that was started from Python: its settings as text, for its run folder."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.addresses import declared_name

from . import yaml
from .folder import FROM_PYTHON

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["PythonRun", "settings_of"]

_LONGEST = 200  # characters of a value without a text form of its own
_MOST = 20  # entries of a list that are written


@dataclass(frozen=True)
class PythonRun:
    """The settings of a run that was started from Python. They describe the run; they cannot start it again.

    Attributes:
        name: the name of the run.
        seed: its seed.
        settings: everything as plain values.
    """

    name: str
    seed: int
    settings: Mapping[str, Any]
    trackers: tuple[Any, ...] = ()

    def plain(self) -> dict[str, Any]:
        """All settings as plain YAML and JSON values."""
        return dict(self.settings)

    def to_yaml(self) -> str:
        """All settings as YAML."""
        return yaml.dump(self.plain())

    def digest(self) -> str:
        """Twelve hexadecimal digits of the settings, without the name."""
        said = {key: value for key, value in self.settings.items() if key != "name"}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def settings_of(job: Job, islands: Any, **run: Any) -> dict[str, Any]:
    """Return the settings of a job and of how it runs as plain values.

    Args:
        job: the job.
        islands: its data.
        run: further settings, such as the seed and the engine.
    """
    own = _own_settings(job)
    if inside := job.jobs():
        parties = {scope: "all" if names is None else list(names) for scope, (_, names) in inside.items()}
        own["jobs"] = {
            scope: {"job": inner.kind, "parties": parties[scope], **_own_settings(inner)}
            for scope, (inner, _) in inside.items()
        }
    source = getattr(islands, "name", "") or type(islands).__name__
    data = {"source": {"name": source}, "clients": len(islands)}
    return {"started": FROM_PYTHON, "job": job.kind, "data": data, **{k: _text(v) for k, v in run.items()}, **own}


def _own_settings(job: Job) -> dict[str, Any]:
    fields = dataclasses.fields(job)  # type: ignore[arg-type]
    return {field.name: _text(getattr(job, field.name)) for field in fields if field.name != "callbacks"}


def _text(value: Any) -> Any:
    """Return a value as plain text, numbers, lists and dicts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _text(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        rest = [] if len(value) <= _MOST else [f"and {len(value) - _MOST} more"]
        return [*(_text(each) for each in list(value)[:_MOST]), *rest]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: _text(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"name": type(value).__name__, **own}
    if isinstance(settings := getattr(value, "__dict__", {}).get("settings"), dict) and not isinstance(value, type):
        return _text(settings)  # a factory of `atoll.models`
    if isinstance(value, functools.partial) and not value.args:
        return {"name": declared_name(value.func), **_text(value.keywords)}
    if isinstance(value, type) or callable(value):
        home = value if hasattr(value, "__qualname__") else type(value)
        return declared_name(home)
    return declared_name(type(value))[:_LONGEST]
