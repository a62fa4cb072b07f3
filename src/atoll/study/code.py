"""Digests of the code and the data that a run depends on: your own classes and functions, the constants and objects that they read, and the rows.

A finished run counts only as long as these are the same. Settings do not show it: a class keeps its name when its method is edited, and a model its class when its
weights change. The code of Atoll, of Python and of installed libraries is left out; `atoll.__version__` and the versions in a run's manifest tell of these.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import pathlib
import re
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["changed_names", "digest_code", "digest_data"]

_OWN = __name__.partition(".")[0]
_LIBRARY = tuple(
    pathlib.Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of installed libraries, those of a user or of the system beside the environment's own."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_VALUES = (
    bytearray, range, slice, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction,
    pathlib.PurePath, re.Pattern, uuid.UUID, np.dtype,
)  # fmt: skip
"""Values of Python's and NumPy's own classes whose ``repr`` says all of them."""
_GENERATED = "<string>"
"""The file of methods that `dataclass` writes: they follow from the fields."""
_LARGEST = 64 << 20
"""Bytes of an array that are read; of a larger one, as many in blocks spread over it."""
_LONGEST = 1000
"""Entries of a list or mapping that are followed: more are data."""
_MOST = 100_000
"""Entries of a constant that are written out."""
_DEEPEST = 50
"""Levels of lists and mappings that are written out: what lies deeper is followed on its own."""
_CLIENTS = 100
"""Clients whose rows are named one by one."""
DATA = "data of "
"""How names of data begin."""


def digest_code(*objects: Any) -> dict[str, str]:
    """Return the digests of all code of yours that some objects reach: name -> sixteen hexadecimal digits.

    Names are ``module:qualname`` of classes and functions, ``module:NAME`` of constants that these read, and ``module:Class().attribute`` of what objects
    hold: attributes, and weights, buffers and layers of PyTorch modules. Functions are followed through closures, defaults, globals, `functools.partial` and
    decorators, objects through their attributes. The digest of a function is that of its compiled code without line numbers and docstring, so that comments and
    layout do not count. What a function finds by a computed name, in a file or in the environment is not seen.

    Args:
        objects: jobs, parts, data or functions that make data.
    """
    found = _Found()
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
    return found.join()


class _Found:
    """Digests by name. Several things of one name, such as a function and the decorator that took its name, count together."""

    def __init__(self) -> None:
        self._texts: dict[str, set[str]] = {}

    def __setitem__(self, name: str, digest: str) -> None:
        self._texts.setdefault(name, set()).add(digest)

    def join(self) -> dict[str, str]:
        """Return one digest a name."""
        return {
            name: next(iter(texts)) if len(texts) == 1 else _digest(repr(sorted(texts)))
            for name, texts in sorted(self._texts.items())
        }


def digest_data(islands: Any) -> dict[str, str]:
    """Return digests of the rows that clients have, and of test rows: ``data of CLIENT`` -> sixteen hexadecimal digits.

    Data sets that make a client's rows when they are asked for are left out: their functions are code.

    Args:
        islands: a federated data set, or clients' data by name.
    """
    if isinstance(islands, Mapping):
        parts = {f"{DATA}{name}": _text_of_data(value) for name, value in islands.items()}
    elif getattr(islands, "stored", None) is False or not all(hasattr(islands, name) for name in ("names", "shard")):
        parts = {}
    else:
        parts = {f"{DATA}{name}": _text_of_data(islands.shard(i)) for i, name in enumerate(islands.names)}
        extra = {name: getattr(islands, name, None) for name in ("test", "held_out", "public")}
        parts |= {f"{DATA}{name}": _text_of_data(value) for name, value in extra.items() if value is not None}
    if len(parts) > _CLIENTS:
        parts = {f"{DATA}{len(parts)} clients": repr(sorted(parts.items()))}
    return {name: _digest(text) for name, text in sorted(parts.items())}


def _text_of_data(value: Any) -> str:
    """Return the columns of a data set, or the content of data of another kind, as text."""
    if callable(getattr(value, "shard", None)) and hasattr(
        value, "names"
    ):  # rows of several clients, which have columns too
        return repr(sorted(digest_data(value).items()))
    names = getattr(value, "columns", None)
    if isinstance(names, tuple) and hasattr(value, "__getitem__"):  # of a data set or a client's part of one
        return repr([(name, _text_of_data(value[name])) for name in names])
    if isinstance(value, Mapping):
        return repr([(str(name), _text_of_data(each)) for name, each in value.items()])
    return _constant(value) or type(value).__name__


def changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose code is not what it was, or that only one of both has."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _follow_object(value: Any, found: _Found) -> Iterator[Any]:
    """Note the code of an object, and yield what it refers to."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value, found)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        given = {str(i): each for i, each in enumerate(value.args)} | value.keywords
        for name, each in given.items():
            yield from _note(f"partial({_name_of(value.func)}).{name}", each, found)
        yield value.func
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
        yield from _of_module(value, found) if _is_module(value) else _of_instance(value, found)


def _of_function(function: types.FunctionType, found: _Found) -> Iterator[Any]:
    """Note the code of a function of the user's, and yield what it refers to."""
    yield getattr(function, "__wrapped__", None)
    if _is_users(function.__module__) and function.__code__.co_filename != _GENERATED:
        if not _is_library(function.__code__.co_filename):  # a library's decorator has the user's name
            found[_name_of(function)] = _digest(_canonical(function.__code__, function.__doc__))
        yield from _read_by(function, found)


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _note(name: str, value: Any, found: _Found) -> Iterator[Any]:
    """Note what of a value is constant under a name, and yield the value if it holds more."""
    text = _constant(value)
    if text is not None:
        found[name] = _digest(text)
    if text is None or _MORE in text:
        yield value


def _of_instance(value: Any, found: _Found) -> Iterator[Any]:
    """Note the attributes of an object of the user's or of a library's, and yield what they refer to; Atoll's own tell theirs in a run's settings."""
    kind = type(value)
    if _is_own(kind.__module__) or kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        yield from _attributes(value)
        return
    slots = {name: getattr(value, name, None) for base in kind.__mro__ for name in _slots_of(base)}
    for name, each in [*slots.items(), *getattr(value, "__dict__", {}).items()][:_LONGEST]:
        yield from (
            [each]
            if name.startswith("__") or (name.startswith("_") and not _is_users(kind.__module__))
            else _note(f"{_name_of(kind)}().{name}", each, found)
        )


def _slots_of(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (
        (names,) if isinstance(names, str) else tuple(name for name in names if name not in ("__dict__", "__weakref__"))
    )


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _of_module(module: Any, found: _Found) -> Iterator[Any]:
    """Note the layers, weights, buffers and attributes of a PyTorch module; yield its layers' classes, hooks and other attributes."""
    home = f"{_name_of(type(module))}()"
    for prefix, layer in module.named_modules():
        at = f"{home}.{prefix}" if prefix else home
        if prefix:
            found[at] = _digest(_name_of(type(layer)))
        yield type(layer)
        for name, each in vars(layer).items():
            if name not in _module_words():
                yield from _note(f"{at}.{name}", each, found)
        found[f"{at}.training"] = _digest(str(layer.training))
        yield from (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values())
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            found[f"{at}.{name}"] = _digest(f"{_constant(tensor)}{getattr(tensor, 'requires_grad', '')}")


@functools.cache
def _module_words() -> frozenset[str]:
    """Return the attributes of every PyTorch module."""
    return frozenset(vars(sys.modules["torch"].nn.Module()))


def _of_class(kind: type, found: _Found) -> Iterator[Any]:
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


def _read_by(function: types.FunctionType, found: _Found) -> Iterator[Any]:
    """Note constants that a function reads; yield all else that it refers to."""
    home, code, last = _name_of(function), function.__code__, function.__defaults__ or ()
    given = dict(zip(code.co_varnames[code.co_argcount - len(last) : code.co_argcount], last, strict=True))
    for name, value in {**given, **(function.__kwdefaults__ or {})}.items():
        yield from _note(f"{home}({name})", value, found)
    named = dict(
        zip(function.__code__.co_freevars, (_content(cell) for cell in function.__closure__ or ()), strict=False)
    )
    words = set(_names(function.__code__))
    for name, value in {**{n: function.__globals__[n] for n in words & function.__globals__.keys()}, **named}.items():
        if isinstance(value, types.ModuleType):
            yield from _read_of_module(value, words, found, ())
        else:
            yield from _note(f"{home}.{name}" if name in named else f"{function.__module__}:{name}", value, found)


def _read_of_module(module: types.ModuleType, words: set[str], found: _Found, above: tuple[str, ...]) -> Iterator[Any]:
    """Note what a function may read of a module of the user's by a dot, ``settings.RATE`` and ``package.settings.RATE``; yield all else that it has under these words."""
    if not _is_users(module.__name__) or module.__name__ in above:
        return
    for word in sorted(words & vars(module).keys()):
        value = vars(module)[word]
        if isinstance(value, types.ModuleType):
            yield from _read_of_module(value, words, found, (*above, module.__name__))
        else:
            yield from _note(f"{module.__name__}:{word}", value, found)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


_MORE = "\0more"
"""Stands in a constant for what is followed on its own: a function, a class or an object."""


def _constant(value: Any, within: tuple[int, ...] = ()) -> str | None:
    """Return a constant as text: a number, a word, an array, a tensor, a table, plain data in a list, mapping, namespace or data class; ``None`` for all else.

    What holds itself (`within`) is written as the place where it stands: nodes of a tree that know their parent would have no end.
    """
    text = _text_of_one(value)
    if text is not None:
        return text
    if id(value) in within:
        return f"\0up {len(within) - within.index(id(value))}"
    if len(within) >= _DEEPEST:
        return None
    inside = (*within, id(value))
    if isinstance(value, tuple | list | set | frozenset | collections.deque):
        texts = _texts(list(value)[:_MOST], inside)
        texts = sorted(texts) if isinstance(value, set | frozenset) else texts
        return None if texts and set(texts) == {_MORE} else f"{type(value).__name__}{len(value)}{texts}"
    if isinstance(value, dict | types.MappingProxyType):
        items = sorted(value.items(), key=lambda item: _text_of_key(item[0]))[:_MOST]
        texts = _texts([each for _, each in items], inside)
        keys = [_text_of_key(key) for key, _ in items]
        return None if texts and set(texts) == {_MORE} else f"dict{len(value)}{list(zip(keys, texts, strict=True))}"
    if isinstance(value, types.SimpleNamespace):
        return _constant(vars(value), inside)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_users(type(value).__module__):
        return _constant({field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}, inside)
    return None


def _texts(values: list[Any], within: tuple[int, ...]) -> list[str]:
    return [_MORE if (text := _constant(each, within)) is None else text for each in values]


def _text_of_key(key: Any) -> str:
    """Return a key as text, or what it is: the text of an object has its address, which is another one in each process."""
    if isinstance(key, tuple | frozenset):
        texts = [_text_of_key(each) for each in key]
        return f"{type(key).__name__}{sorted(texts) if isinstance(key, frozenset) else texts}"
    return repr(key) if isinstance(key, (*_PLAIN, np.generic)) else type(key).__name__


def _text_of_one(value: Any) -> str | None:
    """Return a constant that holds no others as text; ``None`` for all else."""
    if isinstance(value, (*_PLAIN, np.generic)):
        return repr(value)
    if isinstance(value, _VALUES):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    array = _array_of(value)
    return _seed_of(value) if array is None else f"{array.dtype}{array.shape}{_hash_bytes(array)}"


def _seed_of(value: Any) -> str | None:
    """Return the seed of a generator of random numbers as text, which stays when numbers are drawn; ``None`` for all else."""
    if isinstance(value, np.random.Generator):
        sequence: Any = value.bit_generator.seed_seq
        return f"{type(value.bit_generator).__name__} {getattr(sequence, 'entropy', None)} {getattr(sequence, 'spawn_key', None)}"
    torch = sys.modules.get("torch")
    return f"torch {value.initial_seed()}" if torch is not None and isinstance(value, torch.Generator) else None


def _array_of(value: Any) -> np.ndarray | None:
    """Return an array, a tensor, or a table of a library as an array; ``None`` for all else."""
    if isinstance(value, np.ndarray):
        return value
    torch, pandas = sys.modules.get("torch"), sys.modules.get("pandas")
    if torch is not None and isinstance(value, torch.Tensor):
        if torch.nn.parameter.is_lazy(value):
            return None
        plain = value.detach().cpu().contiguous()
        return np.asarray(
            plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.zeros(tuple(plain.shape))
        )
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        rows = pandas.util.hash_pandas_object(value).to_numpy()
        words = "|".join(map(str, getattr(value, "columns", ())))
        return np.concatenate([rows, np.frombuffer(hashlib.sha256(words.encode()).digest(), np.uint64)])
    return None


def _hash_bytes(array: np.ndarray) -> str:
    if array.dtype == object:
        return hashlib.sha256(repr(array.reshape(-1)[:_MOST].tolist()).encode("utf-8", "surrogatepass")).hexdigest()
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    if plain.nbytes > _LARGEST:
        block = 1 << 20
        places = np.linspace(0, plain.nbytes - block, _LARGEST // block).astype(np.int64)
        plain = np.concatenate([plain[place : place + block] for place in places.tolist()])
    return hashlib.sha256(plain.data).hexdigest()


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


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in (_OWN, f"{_OWN}_papers")


@functools.cache
def _is_library(file: str) -> bool:
    path = pathlib.Path(file).resolve()
    return not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _LIBRARY)


@functools.cache
def _is_users(module: str) -> bool:
    """Whether a module is neither Atoll's nor Python's nor an installed library's."""
    root = module.partition(".")[0]
    if _is_own(module) or root in sys.builtin_module_names:
        return False
    if root == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not _is_library(file)
