"""Describes a live job as plain settings that make it again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.core.rooms import Own, job_kinds, part_kinds
from atoll.runs.config import job_class
from atoll.runs.parts import PartConfig, part_type
from atoll.runs.registries import registry
from atoll.runs.schema import Section, is_value, schema_of

from ..bundles.modules import reference_of

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["described", "require_equal"]

_LIVE = "make it in a function of the job's source folder and name that as module:name"


def described(job: Job, model: Any = None) -> dict[str, Any]:
    """Return the settings of a job. ``require_equal`` checks that they make an equal one.

    Args:
        job: the job.
        model: the model's description; by default the model's own.

    Raises:
        ConfigError: a part is not plain data, or cannot be imported under its name.
    """
    kind: Any = type(job)
    fields = schema_of(kind).model.model_fields
    said: dict[str, Any] = {"job": _kind(kind)}
    for field in dataclasses.fields(kind):
        value = getattr(job, field.name)
        if field.name in fields:
            given = field.name == "model" and model is not None
            said[field.name] = model if given else _field(fields[field.name], value, field.name)
        elif not _is_default(field, value):
            raise ConfigError(
                f"{len(value)} {field.name} cannot travel"
                if isinstance(value, list | tuple)
                else f"{field.name} cannot travel",
                where=f"{kind.__name__}.{field.name}",
                remedy="use a stop rule or a tracker, or write a program: module:name",
            )
    return said


def _kind(kind: type[Job]) -> str:
    """Return the value of ``job:`` for a class of jobs."""
    known = next((name for name in job_kinds() if job_class(name) is kind), None)
    return reference_of(kind, "job") if known is None else known


def _field(info: Any, value: Any, where: str) -> Any:
    """Return the value of a field as a configuration gives it."""
    marks = [type(mark) for mark in info.metadata]
    part = info.annotation
    if Own in marks:
        return value if isinstance(value, str) else reference_of(value, where)
    if inspect.isclass(part) and issubclass(part, PartConfig) and part_kinds()[part.kind].costly:
        return _model(value)
    if inspect.isclass(part) and issubclass(part, Section) and value is not None:
        return _settings(value, where)  # one class alone fits, so that its name is no setting
    return _setting(value, where)


def require_equal(job: Job, made: Job) -> None:
    """Refuse a description that makes another job.

    Raises:
        ConfigError: it makes another job; the error names the parts that differ.
    """
    kind: Any = type(job)
    for field in dataclasses.fields(kind):
        old, new = getattr(job, field.name), getattr(made, field.name)
        if field.name != "model" and not _equal(old, new):
            raise ConfigError(
                f"{old!r} would become {new!r}: not all of it is a setting",
                where=f"{kind.__name__}.{field.name}",
                remedy=f"leave what is not a setting at its default, or {_LIVE}",
            )


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_equal, old, new))
    return bool(old == new)


def _part(kind: str, part: Any, where: str) -> dict[str, Any]:
    """Return a part's name and settings."""
    own, found = type(part).__name__, registry(kind)
    # A name that `register` gave a part here says nothing elsewhere, unless it is the name of the class.
    names = [
        name for name, made in found.parts().items() if made is type(part) and (name == own or name not in found.extra)
    ]
    return {"name": names[0] if names else reference_of(type(part), where), **_settings(part, where)}


def _settings(part: Any, where: str) -> dict[str, Any]:
    """Return the settings of a dataclass that differ from their defaults."""
    if not _is_plain(type(part)):
        raise ConfigError(f"a live {type(part).__name__} cannot travel", where=where, remedy=_LIVE)
    kind: Any = type(part)
    names = schema_of(kind).names
    said: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if not field.init or _is_default(field, value):
            continue
        if field.name not in names:
            raise ConfigError(
                f"a live {type(value).__name__} cannot travel", where=f"{where}.{field.name}", remedy=_LIVE
            )
        said[field.name] = _field(schema_of(kind).model.model_fields[field.name], value, f"{where}.{field.name}")
    return said


def _is_plain(kind: type) -> bool:
    """Tell whether an object is its fields alone: of a frozen dataclass, or of a subclass that adds no attributes."""
    for base in kind.__mro__ if is_value(kind) else ():
        if "__dataclass_params__" in vars(base):
            return True
        if "__init__" in vars(base) or "__new__" in vars(base):
            return False
    return False


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return type(value) is type(field.default) and _equal(field.default, value)
    return field.default_factory is not dataclasses.MISSING and _equal(field.default_factory(), value)


def _setting(value: Any, where: str) -> Any:
    if type(value) in (str, int, float, bool, type(None)):
        return value
    if isinstance(value, list | tuple):
        return [_setting(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _setting(inner, f"{where}.{key}") for key, inner in value.items()}
    for base in type(value).__mro__:
        kind = part_type(base.__name__)
        if kind is not None:
            return _part(kind.kind, value, where)
    return _settings(value, where)


def _model(model: Any) -> Any:
    """Describe a model: a function by its name, a partial with its arguments, a dataclass with its fields."""
    if isinstance(model, functools.partial) and not model.args:
        settings = {key: _setting(value, f"model.{key}") for key, value in model.keywords.items()}
        return {"name": reference_of(model.func, "model"), **settings}
    if inspect.isfunction(model) or inspect.isclass(model):
        return {"name": reference_of(model, "model")}
    if _is_plain(type(model)):
        name = getattr(type(model), "part", None) or reference_of(type(model), "model")
        return {"name": name, **_settings(model, "model")}
    raise ConfigError(
        f"a live {type(model).__name__} cannot travel",
        where="Training.model",
        remedy='describe how it is made, as in JobConfig.of(training, model={"name": "mlp", "features": 64, "outputs": 10}), '
        "or name your own function as module:name",
    )
