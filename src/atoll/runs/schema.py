"""The settings of a part, read from its annotations: one pydantic model per class or function."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, create_model

from atoll.core.errors import ConfigError
from atoll.core.rooms import Named, Own

__all__ = ["Problem", "Section", "SettingsSchema", "closest", "collect", "is_value", "names_at", "refused", "schema_of"]


_SCALARS = (bool, int, float, str, types.NoneType)
_UNKNOWN = object()


class Section(BaseModel):
    """Base class of all settings: it refuses unknown keys and silent conversions.

    Attributes:
        makes: the class that the settings make, if there is one.
    """

    # Built on the first check, since a run checks only some of them.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    makes: ClassVar[Any] = None


@dataclass(frozen=True)
class SettingsSchema:
    """The settings that a configuration may give a part.

    Attributes:
        model: the pydantic model of its settings.
        configurable: whether every argument without a default can be written as text.
        open: whether the part takes any setting (``**options``, or arguments without annotations).
        text: the first line of its docstring.
    """

    model: type[BaseModel]
    configurable: bool
    open: bool
    text: str

    @property
    def names(self) -> list[str]:
        """The names of the settings."""
        return list(self.model.model_fields)


@functools.cache
def schema_of(part: Any, given: int = 0) -> SettingsSchema:
    """Read the settings of a class or function.

    Args:
        part: the class or function.
        given: number of leading arguments that are not settings.
    """
    parameters = list(inspect.signature(part).parameters.values())[given:]
    fields: dict[str, Any] = {}
    configurable, anything = True, False
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            anything = anything or parameter.kind is parameter.VAR_KEYWORD
            continue
        annotation = _evaluate_annotation(part, parameter)
        wanted = _settable_part(annotation)
        required = parameter.default is parameter.empty
        # An argument annotated as `Any` takes an object; `name` is the key of the part's name in a configuration.
        if wanted is _UNKNOWN or parameter.name == "name" or parameter.annotation in ("Any", Any):
            configurable = configurable and not required
            continue
        fields[parameter.name] = (wanted, ... if required else _configured_default(part, parameter, wanted))
    text = (inspect.getdoc(part) or "").partition("\n")[0]
    made = create_model(_name_part(part), __base__=Section, __doc__=text, **fields)
    if inspect.isclass(part):
        made.makes = part
    return SettingsSchema(made, configurable, anything, text)


def is_value(part: Any) -> bool:
    """Whether an object is a frozen dataclass: making one has no side effects and costs nothing."""
    return inspect.isclass(part) and dataclasses.is_dataclass(part) and part.__dataclass_params__.frozen  # type: ignore[attr-defined]


def names_at(model: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    """The valid keys of the section at a path."""
    for step in loc:
        annotation = model.model_fields[step].annotation if step in model.model_fields else None
        inner = [a for a in (annotation, *get_args(annotation)) if inspect.isclass(a) and issubclass(a, BaseModel)]
        if inner:
            model = inner[0]
    return list(model.model_fields)


def _name_part(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__))


def _configured_default(part: Any, parameter: inspect.Parameter, wanted: Any) -> Any:
    """The default in the form that a configuration has: sequences become lists; an argument of one class alone is a section without a name."""
    value = parameter.default
    for found in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
        if found.name == parameter.name and found.default_factory is not dataclasses.MISSING:
            return Field(default_factory=_configure_factory(found.default_factory, wanted))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return schema_of(type(value)).model.model_validate(dataclasses.asdict(value))
    return list(value) if isinstance(value, tuple) and not _is_pair(_evaluate_annotation(part, parameter)) else value


def _configure_factory(make: Callable[[], Any], wanted: Any) -> Callable[[], Any]:
    """A factory of the default in the form that a configuration has: an object that is a part becomes the part's name, with the settings that differ."""
    from .parts import part_type

    section = inspect.isclass(wanted) and issubclass(wanted, Section)
    for base in () if section else type(make()).__mro__:
        part = part_type(base.__name__)
        if part is not None:
            return lambda: part.model_validate(_describe_part(make()))
    kind: Any = type(make())
    if is_value(kind) and all(has_default(field) for field in dataclasses.fields(kind)) and make() == kind():
        return lambda: schema_of(kind).model.model_validate({})
    return make


def _describe_part(value: Any) -> Any:
    """A part as a configuration names it: its name, or its name and the settings that are not their defaults."""
    if isinstance(value, list | tuple):
        return [_describe_part(one) for one in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    made = {
        field.name: _describe_part(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.init and not _is_default(value, field)
    }
    name = type(value).__name__
    return {"name": name, **made} if made else name


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(getattr(value, field.name) == field.default_factory())
    return bool(getattr(value, field.name) == field.default) if field.default is not dataclasses.MISSING else False


def has_default(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has a default."""
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _is_pair(annotation: Any) -> bool:
    return any(get_origin(a) is tuple for a in (annotation, *get_args(annotation)))


def _evaluate_annotation(part: Any, parameter: inspect.Parameter) -> Any:
    """The evaluated annotation; ``Any`` if there is none."""
    if parameter.annotation is parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    for scope in _scopes_of_part(part, parameter.name):
        try:
            return eval(parameter.annotation, scope)  # noqa: S307 - the text stands in the part's own source
        except NameError:
            continue
    return _UNKNOWN


def _scopes_of_part(part: Any, name: str) -> Iterable[dict[str, Any]]:
    if inspect.isclass(part):
        for base in part.__mro__:
            if name in inspect.get_annotations(base) or base is part:
                yield vars(sys.modules[base.__module__])
    else:
        yield getattr(inspect.unwrap(part), "__globals__", {})


def _settable_part(annotation: Any) -> Any:
    """The part of an annotation that YAML can express, or ``_UNKNOWN``."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is _UNKNOWN:
        return _UNKNOWN
    if origin is Annotated:
        return _annotate_name(args[0], args[1:])
    if annotation is Any or annotation in _SCALARS or annotation is None or origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        kept = [k for k in (_settable_part(a) for a in args) if k is not _UNKNOWN]
        only_none = all(k in (None, types.NoneType) for k in kept)
        return _UNKNOWN if only_none else functools.reduce(lambda a, b: Union[a, b], kept)  # noqa: UP007
    if annotation is Path:
        return str
    return _settable_container(annotation, origin, args)


def _annotate_name(inner: Any, marks: tuple[Any, ...]) -> Any:
    """What a configuration gives for an object: the name of a part, or words of which some name the user's own objects."""
    from .parts import part_class

    for mark in marks:
        if isinstance(mark, Named):
            return part_class(mark.kind)
        if isinstance(mark, Own):
            return Annotated[str, mark]
    return _settable_part(inner)


def _settable_container(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    from .parts import part_type

    if inspect.isclass(annotation) and part_type(annotation.__name__) is not None:
        return part_type(annotation.__name__)
    if is_value(annotation):
        inside = schema_of(annotation)
        return inside.model if inside.configurable else _UNKNOWN
    inner = [_settable_part(a) for a in args if a is not Ellipsis]
    if _UNKNOWN in inner:
        return _UNKNOWN
    if origin is tuple and Ellipsis not in args:
        return Annotated[types.GenericAlias(tuple, tuple(inner)), Strict(False)]
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return types.GenericAlias(dict, (inner[0], inner[1]))
    if inspect.isclass(origin) and (origin in (list, tuple) or origin in (Sequence, Iterable)):
        return types.GenericAlias(list, (inner[0],))
    return _UNKNOWN


# Problems of a configuration, in messages that name the place, the value and the nearest valid key.


Loc = tuple[Any, ...]


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        loc: path of keys and indices.
        text: what is wrong there.
        remedy: what to do.
    """

    loc: Loc
    text: str
    remedy: str

    def below(self, loc: Loc) -> Problem:
        """The same problem, with a path from further up."""
        return replace(self, loc=(*loc, *self.loc))

    def named(self, part: str) -> Problem:
        """The same problem, with the name of the part that the setting belongs to."""
        return replace(self, remedy=self.remedy.replace("{owner}", part))

    @property
    def path(self) -> str:
        """``algorithm.lr`` or ``uplink[0].bound``."""
        text = ""
        for step in self.loc:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
        return text


def closest(wrong: str, valid: Sequence[str]) -> str | None:
    """The valid word that was probably meant, by spelling or by the initials of its words (learning_rate: lr)."""
    initials = "".join(word[0] for word in wrong.split("_") if word)
    if len(initials) > 1 and initials in valid:
        return initials
    found = difflib.get_close_matches(wrong.lower(), list(valid), n=1, cutoff=0.5)
    return found[0] if found else None


_MAPPING = "should be a mapping of settings"
_WORDS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"), _MAPPING),
    **dict.fromkeys(("list_type", "tuple_type", "iterable_type", "set_type"), "should be a list, such as [a, b]"),
    **dict.fromkeys(("is_instance_of", "is_subclass_of", "callable_type"), "cannot be written in a file of settings"),
    **dict.fromkeys(("string_type", "string_sub_type"), "should be text"),
    "bool_type": "should be true or false",
}
"""What the messages of the library would say with names of classes, or of Python."""


def collect(error: ValidationError, given: Any, names: Callable[[Loc], list[str]]) -> list[Problem]:
    """Translate pydantic's errors.

    Args:
        error: pydantic's error.
        given: the value that was checked.
        names: valid keys at a path.
    """
    problems: dict[Loc, Problem] = {}
    rows = error.errors(include_url=False)
    parts = {_untagged_path(row["loc"], given) for row in rows if "problems" in row.get("ctx", {})}
    for row in rows:
        loc = _untagged_path(row["loc"], given, row["type"] == "missing")
        inner = row.get("ctx", {}).get("problems")
        if inner is None and loc in parts and isinstance(row["input"], dict):
            continue  # a number would also be valid, but a part was meant
        if inner is not None:
            problems.update({p.loc: p for p in (q.below(loc) for q in inner)})
        elif row["type"] == "extra_forbidden":
            problems[loc] = _explain_unknown(loc, row["input"], names(loc[:-1]))
        elif row["type"] == "missing":
            problems[loc] = Problem(loc, "is missing", f"add {loc[-1]}: ... to {{owner}}")
        else:
            text = _WORDS.get(row["type"], row["msg"].removeprefix("Input ").removeprefix("Value error, "))
            before = problems.get(loc)
            said = (
                f"={row['input']!r} {text}"
                if before is None
                else f"{before.text}, or {text.removeprefix('should be ')}"
            )
            remedy = "write NAME: VALUE below it" if text == _MAPPING else "correct the value"
            problems[loc] = Problem(loc, said, remedy)
    return list(problems.values())


def _untagged_path(loc: Loc, given: Any, missing: bool = False) -> Loc:
    """A path without the tags of alternatives that pydantic adds; for a missing key, with that key."""
    path: list[Any] = []
    for number, step in enumerate(loc, 1):
        if isinstance(given, dict):
            if step in given:
                path.append(step)
                given = given[step]
            elif missing and number == len(loc):
                path.append(step)
        elif isinstance(given, list | tuple) and isinstance(step, int):
            path.append(step)
            given = given[step]
        else:
            break
    return tuple(path)


def _explain_unknown(loc: Loc, value: Any, valid: list[str]) -> Problem:
    meant = closest(str(loc[-1]), valid)
    hint = f". Did you mean {meant!r}?" if meant else ""
    listed = ", ".join(sorted(valid)) or "none"
    return Problem(loc, f"={value!r} is not a setting{hint}", f"the settings of {{owner}} are: {listed}")


def refused(problems: Sequence[Problem], where: str) -> ConfigError:
    """Make one error of all problems, the first problem's remedy first."""
    said = [f"{p.path or 'the configuration'}{'' if p.text[0] in '=:' else ' '}{p.text}" for p in problems]
    remedies = list(dict.fromkeys(p.named("this section").remedy for p in problems))
    return ConfigError("; ".join(said), where=where, remedy="; ".join(remedies))
