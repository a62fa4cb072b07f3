"""A digest of the code that a run depends on: your own classes and functions, and the constants that they read.

A finished run counts only as long as its code is the same. Settings do not show it: a class keeps its name when its method is edited. The code of
Atoll, of Python and of installed libraries is left out; `atoll.__version__` and the versions in a run's manifest tell of these.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["changed_names", "digest_code"]

_OWN = __name__.partition(".")[0]
_LIBRARY = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_GENERATED = "<string>"
"""The file of methods that `dataclass` writes: they follow from the fields."""
_LARGEST = 1 << 20
"""Bytes of an array whose content counts: a constant, not a data set."""
_LONGEST = 1000
"""Entries of a list or mapping that are looked at: more are data."""


def digest_code(*objects: Any) -> dict[str, str]:
    """Return the digests of all code of yours that some objects reach: name -> sixteen hexadecimal digits.

    Names are ``module:qualname`` of classes and functions, and ``module:NAME`` of constants that these read. Functions are followed through
    closures, defaults and globals, objects through their attributes. The digest of a function is that of its compiled code without line numbers and
    docstring, so that comments and layout do not count.

    Args:
        objects: jobs, parts, data or functions that make data.
    """
    found: dict[str, str] = {}
    seen: set[int] = set()
    waiting = list(objects)
    kept = []  # ids stay unique only while the objects live
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        waiting += _follow_object(value, found)
    return dict(sorted(found.items()))


def changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose code is not what it was, or that only one of both has."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _follow_object(value: Any, found: dict[str, str]) -> Iterator[Any]:
    """Note the code of an object, and yield what it refers to."""
    if isinstance(value, types.FunctionType):
        yield getattr(value, "__wrapped__", None)
        if _is_users(value.__module__) and value.__code__.co_filename != _GENERATED:
            found[f"{value.__module__}:{value.__qualname__}"] = _digest(_canonical(value.__code__, value.__doc__))
            yield from _read_by(value, found)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, type):
        yield from _of_class(value, found)
    elif isinstance(value, types.ModuleType | np.ndarray):
        return
    elif isinstance(value, Mapping):
        yield from list(value.values())[:_LONGEST]
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)[:_LONGEST]
    else:
        yield type(value)
        yield from _attributes(value)


def _of_class(kind: type, found: dict[str, str]) -> Iterator[Any]:
    """Note a class of the user's; its bases and methods follow."""
    yield from kind.__bases__
    if not _is_users(kind.__module__):
        return
    plain = {name: text for name, each in vars(kind).items() if not name.startswith("__") and (text := _constant(each))}
    fields = list(vars(kind).get("__annotations__", ()))
    found[f"{kind.__module__}:{kind.__qualname__}"] = _digest(repr((kind.__qualname__, sorted(plain.items()), fields)))
    for each in vars(kind).values():
        if isinstance(each, staticmethod | classmethod):
            yield each.__func__
        elif isinstance(each, property):
            yield from (each.fget, each.fset)
        elif isinstance(each, functools.cached_property):
            yield each.func
        elif isinstance(each, types.FunctionType | type):
            yield each


def _attributes(value: Any) -> Iterable[Any]:
    """Return what an object holds, if it can hold parts of the user's: an object of the user's, or a part of a library with parts in it."""
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())[:_LONGEST]


def _read_by(function: types.FunctionType, found: dict[str, str]) -> Iterator[Any]:
    """Note constants that a function reads; yield all else that it refers to."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    home = f"{function.__module__}:{function.__qualname__}"
    named = dict(
        zip(function.__code__.co_freevars, (_content(cell) for cell in function.__closure__ or ()), strict=False)
    )
    words = set(_names(function.__code__))
    for name, value in {**{n: function.__globals__[n] for n in words & function.__globals__.keys()}, **named}.items():
        if isinstance(value, types.ModuleType):
            if _is_users(value.__name__):
                yield from (getattr(value, word) for word in words if hasattr(value, word))
        elif (constant := _constant(value)) is not None:
            found[f"{home}.{name}" if name in named else f"{function.__module__}:{name}"] = _digest(constant)
        else:
            yield value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _constant(value: Any) -> str | None:
    """Return a constant as text: a number, a word, a small array, or a list of these; ``None`` for all else."""
    if isinstance(value, (*_PLAIN, np.generic)):
        return repr(value)
    if isinstance(value, np.ndarray):
        return (
            f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
            if value.nbytes <= _LARGEST and value.dtype != object
            else None
        )
    if isinstance(value, tuple | list | set | frozenset) and len(value) <= _LONGEST:
        parts = [_constant(each) for each in value]
        texts = [part for part in parts if part is not None]
        ordered = sorted(texts) if isinstance(value, set | frozenset) else texts
        return f"{type(value).__name__}{ordered}" if len(texts) == len(parts) else None
    if isinstance(value, dict) and len(value) <= _LONGEST:
        return _constant([each for item in sorted(value.items(), key=lambda item: repr(item[0])) for each in item])
    return None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _canonical(code: types.CodeType, doc: str | None) -> str:
    """Return what a function computes, as text: neither where it stands nor what is said about it."""
    head = (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_varnames,
        code.co_freevars,
        code.co_flags,
    )
    steps = [
        (step.opname, _text_of(step.argval) if step.opname == "LOAD_CONST" else step.argrepr)
        for step in dis.get_instructions(code)
    ]
    inner = [_canonical(each, _doc_of(each)) for each in code.co_consts if isinstance(each, types.CodeType)]
    return repr((head, [step for step in steps if doc is None or step[1] != repr(doc)], inner))


def _text_of(constant: Any) -> str:
    """Return a constant of compiled code as text that is the same in every process: sets have another order in each."""
    if isinstance(constant, types.CodeType):
        return constant.co_name  # its own text has an address; `_canonical` has what it does
    return repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


def _doc_of(code: types.CodeType) -> str | None:
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) and inspect.CO_OPTIMIZED & code.co_flags else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@functools.cache
def _is_users(module: str) -> bool:
    """Whether a module is neither Atoll's nor Python's nor an installed library's."""
    root = module.partition(".")[0]
    if root in (_OWN, f"{_OWN}_papers") or root in sys.builtin_module_names:
        return False
    if root == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not str(Path(file).resolve()).startswith(_LIBRARY)
