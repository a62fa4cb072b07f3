"""Parts by name: what a configuration may say, found where the parts are defined.

A part is configurable because it is there: a class or function that its room lists in ``__all__``. Nothing is written down twice.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from atoll.core.errors import ConfigError, nearest

from .schema import Schema, schema_of

__all__ = ["HOME", "KINDS", "Registry", "imported", "register", "registry"]


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _is_kind(base: str, itself: bool = False) -> Callable[[Any], bool]:
    """Whether something is a class below ``module:Class``, or that class itself where it can be used as it is."""

    def test(found: Any) -> bool:
        parent = _load(base)
        return inspect.isclass(found) and issubclass(found, parent) and (itself or found is not parent)

    return test


def _whole(found: Any) -> bool:
    """Whether something is an algorithm by itself, not only a part of others, which its card says."""
    return _is_kind("atoll.learn:Algorithm")(found) and not found.card.part


def _any(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether one of these tests is passed."""
    return lambda found: any(test(found) for test in tests)


def _gives(*names: str, takes: str | None = None) -> Callable[[Any], bool]:
    """Whether something is a function that returns one of these types and first takes another."""

    def test(found: Any) -> bool:
        if not inspect.isfunction(found) or str(found.__annotations__.get("return")) not in names:
            return False
        first = next(iter(inspect.signature(found).parameters.values()), None)
        return takes == (str(first.annotation) if first is not None and takes is not None else None)

    return test


def _load(where: str) -> Any:
    module, _, name = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else []:
        found = getattr(found, part)
    return found


HOME: ContextVar[str] = ContextVar("HOME", default="the working folder")
"""Where modules of the user's own are looked for, in the words of a remedy."""


def imported(name: str, kind: str, *, where: str | None = None) -> Any:
    """Something of the user's own, said as ``module:name``.

    Args:
        name: ``module:name``.
        kind: what it is to be, for errors.
        where: the setting that names it, for errors.

    Raises:
        ConfigError: it cannot be imported, or is neither class nor function.
    """
    try:
        found = _load(name)
    except Exception as error:  # the module is the user's own: whatever it raises
        why, remedy = _not_imported(name, kind, error)
        raise ConfigError(f"{name!r} cannot be imported: {why}", where=where, remedy=remedy) from error
    if not callable(found):
        raise ConfigError(f"{name!r} is a {type(found).__name__}", where=where, remedy="name a class or a function")
    return found


def _not_imported(name: str, kind: str, error: Exception) -> tuple[str, str]:
    """Why something cannot be imported, and what to do about it: the module is not there, fails, or lacks the name."""
    module, _, attribute = name.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name and not f"{module}.".startswith(f"{error.name}."):
        lacking = error.name.partition(".")[0]
        return (
            f"it imports {error.name}, which is not installed here",
            f"install {lacking!r}, or put it into {HOME.get()}",
        )
    made = sys.modules.get(module)
    if isinstance(error, AttributeError) and made is not None and error.obj is made:
        offered = [key for key, value in vars(made).items() if callable(value) and not key.startswith("_")]
        return f"{error}.{nearest(attribute, offered)}", f"correct the name, or define it in {module}"
    if isinstance(error, ImportError | AttributeError | ValueError):
        return str(error), f"name your own {kind} as module:name, with the module in {HOME.get()} or installed"
    return f"{type(error).__name__}: {error}", f"correct module {module}, which raises this as it is imported"


@dataclass
class Registry:
    """The parts of one kind.

    Attributes:
        kind: the field's word for it: algorithm, selection, ...
        homes: modules whose ``__all__`` is looked through; one that is not installed is passed over.
        fits: whether an object is a part of this kind.
        given: first arguments that the run supplies, not the configuration.
        extra: parts registered from outside, name -> object.
        instead: what a name that is none means elsewhere, and what to do: ``(what, remedy)``.
    """

    kind: str
    homes: tuple[str, ...]
    fits: Callable[[Any], bool]
    given: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    instead: Callable[[str], tuple[str, str] | None] = lambda name: None
    _known: dict[str, Any] | None = None
    _found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def parts(self) -> dict[str, Any]:
        """Name -> class or function, those that a configuration can express."""
        if self._known is None:
            self._known = self._those(lambda name: True)
        return {**self._known, **self.extra}

    def _those(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """The parts with names that are wanted; others are not even loaded."""
        found: dict[str, Any] = {}
        for home in self.homes:
            parent = home.rpartition(".")[0]
            if importlib.util.find_spec(parent) is None or importlib.util.find_spec(home) is None:
                continue
            module = importlib.import_module(home)
            members = {name: getattr(module, name) for name in getattr(module, "__all__", ()) if wanted(name)}
            found.update({name: part for name, part in members.items() if self.fits(part)})
        return {n: p for n, p in found.items() if schema_of(p, self.given).configurable}

    def find(self, name: str) -> tuple[str, Any]:
        """The canonical name and the part; ``module:attribute`` finds the user's own.

        Raises:
            ConfigError: no such part.
        """
        if ":" in name:
            return name, imported(name, self.kind)
        found = self._named(_plain(name))
        if found:
            return list(found.items())[-1]
        other = self.instead(name)
        if other is not None:
            raise ConfigError(f"{name!r} is {other[0]}", remedy=other[1])
        parts = self.parts()
        raise ConfigError(
            f"{name!r} is no {self.kind}.{nearest(name, parts)}",
            remedy=f"use one of {', '.join(sorted(parts))}, or your own as module:name",
        )

    def _named(self, plain: str) -> dict[str, Any]:
        """The parts of that name but for case and hyphens."""
        if plain not in self._found:
            self._found[plain] = self._those(lambda name: _plain(name) == plain)
        return {**self._found[plain], **{n: p for n, p in self.extra.items() if _plain(n) == plain}}

    def schema(self, part: Any) -> Schema:
        """The settings of a part."""
        return schema_of(part, self.given)


def _program(name: str) -> tuple[str, str] | None:
    """A method that is a program of its own, and how to run it."""
    from atoll.learn.catalogue import programs

    found = next((made for made in programs() if _plain(made) == _plain(name)), None)
    if found is None:
        return None
    how = f"run it from Python: atoll.simulate(atoll.learn.admm.{found}(...).program, islands)"
    return (
        "a program of its own, and no algorithm of a training",
        f"{how}; between organisations name it in a program: module:name",
    )


_DATASET, _ISLANDS = "Dataset", "Islands"

KINDS: dict[str, Registry] = {
    made.kind: made
    for made in (
        Registry("data source", ("atoll.data",), _gives(_DATASET, _ISLANDS)),
        Registry("partition", ("atoll.data",), _gives(_ISLANDS, takes=_DATASET), given=1),
        Registry("corruption", ("atoll.data",), _is_kind("atoll.data:Corruption")),
        Registry("model", ("atoll.models",), inspect.isfunction),
        Registry("algorithm", ("atoll.learn.algorithms",), _whole, instead=_program),
        Registry("transform", ("atoll.learn.transforms",), _is_kind("atoll.learn.transforms:Transform")),
        Registry("topology", ("atoll.learn.topology",), _is_kind("atoll.learn.topology:Topology")),
        Registry("graph", ("atoll.learn.topology",), _is_kind("atoll.learn.topology:Graph")),
        Registry("selection", ("atoll.learn.selection",), _is_kind("atoll.learn:Selection")),
        Registry("aggregation", ("atoll.learn.aggregation",), _is_kind("atoll.learn:Aggregation")),
        Registry("pacing", ("atoll.learn.pacing",), _is_kind("atoll.learn.pacing:Pacing")),
        Registry("staleness", ("atoll.learn.pacing.staleness",), _is_kind("atoll.learn.pacing.staleness:Staleness")),
        Registry("slack estimator", ("atoll.learn.pacing.slack",), _is_kind("atoll.learn.pacing.slack:SlackEstimator")),
        Registry("uplink stage", ("atoll.core.stage", "atoll.stages"), _is_kind("atoll.core.stage:Stage")),
        Registry("reducer", ("atoll.core.reducer", "atoll.secure"), _is_kind("atoll.core.reducer:Reducer")),
        Registry("stop rule", ("atoll.learn.stop",), _is_kind("atoll.learn.stop:StopRule")),
        Registry("metric", ("atoll.learn.metrics",), _is_kind("atoll.learn.metrics:ScoreMetric")),
        Registry(
            "device model", ("atoll.devices",), _any(_is_kind("atoll.devices:Fleet", itself=True), _gives("Fleet"))
        ),
        Registry("distribution", ("atoll.devices",), _is_kind("atoll.devices:Distribution")),
        Registry("compute rule", ("atoll.devices",), _is_kind("atoll.devices:Compute")),
        Registry("link rule", ("atoll.devices",), _is_kind("atoll.devices:Link")),
        Registry("availability", ("atoll.devices",), _is_kind("atoll.devices:Availability")),
        Registry("trace", ("atoll.devices",), _any(_is_kind("atoll.devices:Trace"), _gives("Recorded"))),
        Registry("tracker", ("atoll.report.trackers",), inspect.isclass),
    )
}
"""Every kind of part, by its name."""


def registry(kind: str) -> Registry:
    """The registry of a kind."""
    return KINDS[kind]


def register(kind: str, name: str, part: Any) -> None:
    """Make a part of your own configurable by a short name.

    Args:
        kind: one of ``KINDS``.
        name: what the configuration says.
        part: a class or function whose annotated arguments are its settings.

    Raises:
        ConfigError: no such kind, or the name is taken by another part.
    """
    if kind not in KINDS:
        raise ConfigError(f"no kind of part {kind!r}.{nearest(kind, KINDS)}", remedy=f"use one of {', '.join(KINDS)}")
    taken = KINDS[kind].parts().get(name)
    if taken is not None and taken is not part:
        raise ConfigError(f"there is already a {kind} {name!r}", remedy="choose another name")
    KINDS[kind].extra[name] = part
