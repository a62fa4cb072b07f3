"""What functions of a model, a loss or a loop reach that is nobody's own: closures, defaults and attributes of functions, and globals of their modules."""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dis import get_instructions, opmap
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from .own_state import (
    BIG,
    MODULE_ATTRIBUTES,
    OwnState,
    equal_values,
    is_foreign,
    read_class,
    write_array,
    write_class,
    write_items,
    write_keys,
)

__all__ = ["SharedState", "reaches"]

Tensor = torch.Tensor


class SharedState:
    """What functions reach that is nobody's own: closures, defaults and attributes of functions, and globals of their modules.

    Clients, rounds and measurements share it. After a trial it is put back; after a training it is left, since a log that its owner reads may be among it.

    Args:
        roots: functions, methods, classes, or objects whose class has them.
        own: what is put back for every client, see `OwnState`.
    """

    def __init__(self, roots: Iterable[Any], own: OwnState | None = None) -> None:
        self._given = ([*roots], own)
        self._own = set() if own is None else {id(one.held) for one in own._kept.values()}
        self._seen = set[int]()
        self._kept = list[tuple[str, Callable[[], Any], Callable[[Any], None], Any]]()
        self._waiting = [("", root) for root in self._given[0]]
        while self._waiting and len(self._seen) < _MANY:
            name, held = self._waiting.pop()
            if id(held) not in self._seen and (isinstance(held, type) or id(held) not in self._own):
                self._seen.add(id(held))
                self._visit(name, held)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given}  # another process has closures, globals and classes of its own

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        SharedState.__init__(self, *state["given"])

    def list_changes(self) -> list[str]:
        """Return what differs from its value at first, by the name of the function, class or module that reaches it."""
        return sorted({name for name, read, _, first in self._kept if not equal_values(first, read())})

    def restore(self) -> None:
        """Put back what has changed, except for iterators."""
        for _, read, write, first in self._kept:
            if not equal_values(first, read()):
                write(first)

    def _keep(self, name: str, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._kept.append((name, read, write, read()))

    def _visit(self, name: str, held: Any) -> None:
        if isinstance(held, MethodType | partial):
            parts = (held.__func__, held.__self__) if isinstance(held, MethodType) else (held.func, *held.args)
            self._waiting += [(name, part) for part in parts]
        elif isinstance(held, FunctionType):
            self._visit_function(held)
        elif isinstance(held, type):
            self._visit_class(held)
        elif isinstance(held, tuple):
            self._waiting += [(name, value) for value in held]
        elif isinstance(held, dict | list | set | deque):
            write = write_keys if isinstance(held, dict) else write_items
            stored = partial(_copy_stored, held)
            self._keep(name, stored, lambda first: write(held, first))
            first = stored()
            self._waiting += [(name, value) for value in (first.values() if isinstance(first, dict) else first)]
        elif isinstance(getattr(held, "__dict__", None), dict) and not isinstance(held, Tensor):
            self._visit_object(name, held)
        else:
            self._visit_leaf(name, held)

    def _visit_leaf(self, name: str, held: Any) -> None:
        if isinstance(held, Tensor | np.ndarray):
            array = held.detach().numpy() if isinstance(held, Tensor) and held.device.type == "cpu" else held
            if isinstance(array, np.ndarray) and array.size <= BIG:
                self._keep(name, array.copy, lambda first: write_array(array, first))
        elif isinstance(held, Iterator):
            self._keep(name, lambda: _Cursor.of(held), lambda first: None)

    def _visit_object(self, name: str, held: Any) -> None:
        foreign, layer, own = is_foreign(type(held)), isinstance(held, nn.Module), vars(held)
        if not (foreign or layer):
            return
        if id(own) not in self._own:
            kept = [] if not layer else MODULE_ATTRIBUTES
            self._keep(
                name,
                lambda: {key: value for key, value in own.items() if key not in kept},
                lambda first: write_keys(own, {**{key: own[key] for key in own if key in kept}, **first}),
            )
            self._waiting += [(name, part) for part in (held._buffers.values() if layer else ())]
        self._waiting += [
            (f"{name}.{key}".strip("."), value) for key, value in own.items() if key not in MODULE_ATTRIBUTES
        ]
        if layer:
            self._waiting += [(f"{name}.{key}".strip("."), part) for key, part in held.named_children()]
        if foreign:
            self._waiting.append((type(held).__qualname__, type(held)))

    def _visit_function(self, function: FunctionType) -> None:
        if not is_foreign(function):
            return
        code, name = function.__code__, function.__qualname__.rpartition("<locals>.")[2]
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._keep(f"{name}.{variable}", partial(_cell_of, cell), partial(setattr, cell, "cell_contents"))
            self._waiting.append((f"{name}.{variable}", _cell_of(cell)))
        self._keep(name, lambda: dict(vars(function)), partial(write_keys, vars(function)))
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values())
        self._waiting += [(name, value) for value in defaults]
        names, written = _globals_of(code)
        for each in names:
            value = function.__globals__.get(each)
            if isinstance(value, FunctionType | type) or _is_held(value):
                self._waiting.append((f"{function.__module__}.{each}", value))
        for each in written:
            world = function.__globals__
            self._keep(f"{function.__module__}.{each}", partial(world.get, each), partial(world.__setitem__, each))

    def _visit_class(self, kind: type) -> None:
        if not is_foreign(kind):
            return
        if id(kind) not in self._own:
            self._keep(kind.__qualname__, lambda: read_class(kind), partial(write_class, kind))
        for name, value in vars(kind).items():
            inside = isinstance(value, FunctionType | type | classmethod | staticmethod | property)
            if inside and not (name.startswith("__") and isinstance(value, type)):
                made = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                self._waiting.append((f"{kind.__qualname__}.{name}", made))
            elif _is_held(value):
                self._waiting.append((f"{kind.__qualname__}.{name}", value))
        self._waiting += [(base.__qualname__, base) for base in kind.__bases__]


_HELD: tuple[type, ...] = (dict, list, set, deque, tuple, np.ndarray, Tensor, MethodType, partial, Iterator)
_MANY = 5000  # objects that functions reach, and that are looked at


def _is_held(value: Any) -> bool:
    """Tell whether a value of a module may change in place."""
    return isinstance(value, _HELD) or (hasattr(value, "__dict__") and is_foreign(type(value)))


def _copy_stored(held: Any) -> Any:
    """Return a copy of what a container stores. One of a library may need arguments of its own to be copied, or import modules when it is read."""
    kinds = (dict, list, set, deque)
    if type(held) in (*kinds, OrderedDict, defaultdict):
        return held.copy()
    return next(kind for kind in kinds if isinstance(held, kind)).copy(held)


def _cell_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


_STORE_GLOBAL = opmap["STORE_GLOBAL"]


def _globals_of(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names that a function looks up in its module, those of functions inside it too, and those that it assigns there."""
    names, written = set(code.co_names), set[str]()
    if (
        _STORE_GLOBAL in code.co_code[::2]
    ):  # few functions have it, and reading instructions takes a thousand times as long
        written |= {step.argval for step in get_instructions(code) if step.opname == "STORE_GLOBAL"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, assigned = _globals_of(inner)
            names, written = names | more, written | assigned
    return names, written


@dataclass(frozen=True)
class _Cursor:
    """Where an iterator is."""

    place: str

    @classmethod
    def of(cls, held: Any) -> _Cursor:
        """Read it without a step."""
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # later versions of Python warn of it
            return cls(repr(held.__reduce__()))
        return cls("")


def reaches(root: Any, wanted: Collection[Any]) -> bool:
    """Tell whether a function or an object of the user's holds one of some objects: by a closure, a default, an attribute, or a global that it reads.

    Args:
        root: the function or object.
        wanted: the objects, found by identity.
    """
    places, seen, waiting = {id(held) for held in wanted}, dict[int, Any](), [root]
    while waiting and len(seen) < _MANY:
        held = waiting.pop()
        if id(held) in places:
            return True
        if id(held) not in seen:
            seen[id(held)] = held  # what is kept has no other's place
            waiting += _parts_of(held)
    return False


def _parts_of(held: Any) -> list[Any]:
    """Return what an object of the user's holds, and what a function of theirs can read."""
    if isinstance(held, MethodType):
        return [held.__func__, held.__self__]
    if isinstance(held, partial):
        return [held.func, *held.args, *held.keywords.values()]
    if isinstance(held, FunctionType):
        if not is_foreign(held):
            return []
        cells = [_cell_of(cell) for cell in held.__closure__ or ()]
        read = [held.__globals__.get(name) for name in _read_globals(held.__code__)]
        return [*cells, *read, *(held.__defaults__ or ()), *(held.__kwdefaults__ or {}).values()]
    if isinstance(held, dict | list | tuple | set | deque):
        return [*(held.values() if isinstance(held, dict) else held)]
    foreign = is_foreign(type(held))
    if isinstance(held, type | ModuleType | Tensor) or not (foreign or isinstance(held, nn.Module)):
        return []
    methods = [value for value in vars(type(held)).values() if isinstance(value, FunctionType)] if foreign else []
    return [*getattr(held, "__dict__", {}).values(), *methods]


def _read_globals(code: CodeType) -> set[str]:
    """Return the globals that a function, and functions inside it, read: exactly, since a name of an attribute may be that of a global."""
    inner = (_read_globals(part) for part in code.co_consts if isinstance(part, CodeType))
    return {step.argval for step in get_instructions(code) if step.opname == "LOAD_GLOBAL"}.union(*inner)
