"""A part in a configuration: ``{name: FedAvg, lr: 0.1}``, or just ``FedAvg``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_serializer, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from atoll.core.errors import AtollError, ConfigError
from atoll.core.rooms import part_kinds

from .schema import Loc, Problem, Section, collect, is_value, names_at

__all__ = ["PartConfig", "argument", "part_class", "part_type", "plain", "refusing"]


class PartConfig(BaseModel):
    """One named part and its settings.

    Attributes:
        kind: the registry that the part is from.
        own: settings of the place rather than the part, such as a corruption's share of the clients.
        name: the part's name.
        args: its settings, checked and with defaults.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)
    kind: ClassVar[str] = ""
    own: ClassVar[tuple[str, ...]] = ()
    name: str
    args: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        from .registries import registry

        if isinstance(given, cls):
            return {"name": given.name, "args": given.args}
        said = {"name": given} if isinstance(given, str) else given
        if not isinstance(said, dict) or not isinstance(said.get("name"), str):
            _refuse([Problem((), f"names no {cls.kind}", "write it as {name: ..., setting: ...}")])
        try:
            name, part = registry(cls.kind).find(said["name"])
        except ConfigError as error:
            _refuse([Problem(("name",), _after_name(error.what, said["name"]), str(error.remedy))])
        settings = {k: v for k, v in said.items() if k != "name" and k not in cls.own}
        kept = {k: v for k, v in said.items() if k in cls.own}
        schema = registry(cls.kind).schema(part)
        args = cls._validated(name, schema, settings)
        for key, value in args.items():
            if isinstance(value, Section):
                with refusing(list(type(value).model_fields), type(value).__name__, (key,)):
                    argument(value, key)
        made = part_kinds()[cls.kind]
        if (is_value(part) or made.pure) and not made.given:
            with refusing(schema.names, name):
                part(**{k: argument(v, k) for k, v in args.items()})
        return {"name": name, "args": {**args, **kept}}

    @classmethod
    def _validated(cls, name: str, schema: Any, settings: dict[str, Any]) -> dict[str, Any]:
        unknown = [k for k in settings if k not in schema.names]
        if unknown and schema.open:
            free = {k: settings.pop(k) for k in unknown}
            return {**cls._validated(name, schema, settings), **free}
        try:
            found = schema.model.model_validate(settings)
        except ValidationError as error:
            problems = collect(error, settings, lambda loc: [*names_at(schema.model, loc), *(() if loc else cls.own)])
            _refuse([p.named(str(p.loc[-2]) if len(p.loc) > 1 else name) for p in problems])
        return {key: getattr(found, key) for key in schema.names}

    @model_serializer
    def _dump(self) -> dict[str, Any]:
        return {"name": self.name, **{k: plain(v) for k, v in self.args.items()}}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return a reference to ``described``: a part may contain parts of its own kind, so its schema cannot be inline."""
        del core, handler
        return {"title": cls.kind}

    @classmethod
    def described(cls) -> dict[str, Any]:
        """The JSON Schema: one alternative a part, and the bare names of parts without required settings; their sections are below ``$defs``."""
        from .registries import registry

        found = registry(cls.kind)
        options = [_described(name, found.schema(part), cls.own) for name, part in sorted(found.parts().items())]
        own = {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": ":"}},
            "required": ["name"],
            "title": "your own, as module:name",
        }
        sections = {name: text for option in options for name, text in option.pop("$defs").items()}
        return {"anyOf": [{"type": "string"}, *options, own], "title": cls.kind, "$defs": sections}

    def build(self, path: str, *given: Any) -> Any:
        """Make the part.

        Args:
            path: the part's path in the configuration, for errors.
            given: leading arguments that the run gives.

        Raises:
            AtollError: the part refuses its settings.
        """
        from .registries import registry

        part = registry(self.kind).find(self.name)[1]
        settings = {k: argument(v, f"{path}.{k}") for k, v in self.args.items() if k not in self.own}
        try:
            return part_kinds()[self.kind].later(functools.partial(part, *given, **settings))
        except AtollError as error:
            raise type(error)(error.what, where=f"{path} ({error.where or self.name})", remedy=error.remedy) from error
        except TypeError as error:
            raise ConfigError(
                f"{self.name} cannot be made: {error}", where=path, remedy="give the settings that it requires"
            ) from error


def _refuse(problems: list[Problem]) -> NoReturn:
    raise PydanticCustomError("part", "a part that cannot be used", {"problems": problems})


def _after_name(what: str, name: str) -> str:
    """The sentence as it reads after ``algorithm.name``."""
    return f"={what}" if what.startswith(repr(name)) else what


@contextmanager
def refusing(names: list[str], owner: str, below: Loc = ()) -> Iterator[None]:
    """Turn an error of a part's or section's constructor about its settings into a problem of the configuration.

    Args:
        names: names of the settings.
        owner: name of the part or section, for an error that is not an `AtollError`.
        below: its path within the value that is checked.
    """
    try:
        yield
    except ConfigError as error:
        said = re.match(r"(\w+)=", error.what)
        inside = said is not None and said[1] in names
        loc, text = ((said[1],), error.what[len(said[1]) :]) if said and inside else ((), f": {error.what}")
        _refuse([Problem((*below, *loc), text, error.remedy or "correct the value")])
    except AtollError:  # not about one setting: the run raises it unchanged
        return
    except (TypeError, ValueError) as error:
        _refuse([Problem(below, f": {owner} cannot be made: {error}", "correct the settings")])


def argument(value: Any, path: str) -> Any:
    """A setting as the part's constructor takes it: parts are built, sections are made, lists become tuples."""
    if isinstance(value, PartConfig):
        return value.build(path)
    if isinstance(value, Section):
        return value.makes(**{key: argument(getattr(value, key), f"{path}.{key}") for key in type(value).model_fields})
    if isinstance(value, list):
        return tuple(argument(v, f"{path}[{i}]") for i, v in enumerate(value))
    return {k: argument(v, f"{path}.{k}") for k, v in value.items()} if isinstance(value, dict) else value


def plain(value: Any) -> Any:
    """A setting as a plain YAML and JSON value."""
    if isinstance(value, PartConfig):
        return value.model_dump()
    if isinstance(value, Section):
        return {key: plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _described(name: str, schema: Any, own: tuple[str, ...]) -> dict[str, Any]:
    inner = schema.model.model_json_schema()
    properties = {"name": {"const": name}, **inner.get("properties", {}), **{k: {"type": "number"} for k in own}}
    return {
        "title": name,
        "description": schema.text,
        "type": "object",
        "properties": properties,
        "required": ["name", *inner.get("required", []), *own],
        "additionalProperties": False,
        "$defs": inner.get("$defs", {}),
    }


@functools.cache
def part_class(kind: str) -> type[PartConfig]:
    """The settings class of the parts of a kind."""
    made = part_kinds()[kind]
    name = "".join(word.capitalize() for word in kind.split()) + "Part"
    return type(name, (PartConfig,), {"__doc__": made.text, "__module__": __name__, "kind": kind, "own": made.own})


@functools.cache
def part_type(class_name: str) -> type[PartConfig] | None:
    """The type of a setting whose value is an object of a base class, such as the inner algorithm of a wrapper."""
    found = next((part.kind for part in part_kinds().values() if part.holds == class_name), None)
    return None if found is None else part_class(found)
