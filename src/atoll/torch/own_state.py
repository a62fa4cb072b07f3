"""What a model keeps beside its parameters and buffers: found, and put back to its first value.

A module may count its passes in an attribute, collect activations in a list, or keep a moving average in a dictionary, an array or an object of its own.
None of it travels. Left alone, it would go from one client to the next and from round to round, in the order in which a process happens to train them.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = [
    "BIG",
    "MODULE_ATTRIBUTES",
    "OwnState",
    "equal_values",
    "generator_states",
    "is_foreign",
    "read_class",
    "seed_generators",
    "write_array",
    "write_class",
    "write_items",
    "write_keys",
]

Tensor = torch.Tensor
BIG = 1 << 20  # entries of a tensor that is only copied back if its version has changed


def _write_tensor(tensor: Tensor, first: Tensor) -> None:
    with torch.no_grad():
        if (tensor.shape, tensor.dtype) == (first.shape, first.dtype):
            tensor.data.copy_(first)
        else:
            tensor.data = first.clone()


def write_array(array: np.ndarray, first: np.ndarray) -> None:
    """Write values into an array, unless it is read alone."""
    if array.flags.writeable:
        array[...] = first


def write_keys(held: Any, first: Mapping[Any, Any]) -> None:
    """Write entries into a dictionary, and leave those that are the same."""
    if len(held) == len(first) and all(a == b for a, b in zip(held, first, strict=True)):
        for key, value in first.items():
            if held[key] is not value:
                held[key] = value
    else:
        held.clear()
        held.update(first)


def write_items(held: Any, first: Iterable[Any]) -> None:
    """Write items into a list, a set or a queue."""
    items = [*first]
    held.clear()
    (held.update if isinstance(held, set) else held.extend)(items)


_KINDS: tuple[tuple[Any, Callable[[Any], Any], Callable[[Any, Any], None]], ...] = (
    (Tensor, lambda held: held.detach().clone(), _write_tensor),
    (np.ndarray, lambda held: held.copy(), write_array),
    (dict, dict, write_keys),
    (list, list, lambda held, first: held.__setitem__(slice(None), first)),
    (set, set, write_items),
    (deque, list, write_items),
    (bytearray, bytes, lambda held, first: held.__setitem__(slice(None), first)),
    (
        np.random.Generator,
        lambda held: deepcopy(held.bit_generator.state),
        lambda held, first: setattr(held.bit_generator, "state", first),
    ),
    (np.random.RandomState, lambda held: held.get_state(), lambda held, first: held.set_state(first)),
    (random.Random, lambda held: held.getstate(), lambda held, first: held.setstate(first)),
    (torch.Generator, lambda held: held.get_state(), lambda held, first: held.set_state(first)),
)
"""Kinds of objects whose contents change in place: the kind, how to read the contents, how to write them."""


@dataclass
class _Kept:
    """One object, and its contents at first.

    Attributes:
        held: the object; an instance's attributes stand for it.
        read: returns its contents now.
        write: writes contents into it.
        first: its contents at first.
        owner: the instance whose attributes these are, or the class.
        version: of a tensor.
    """

    held: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    first: Any
    owner: Any = None
    version: int = 0

    def restore(self) -> None:
        """Write the first contents back."""
        if isinstance(self.held, Tensor):
            if self.held.numel() > BIG and self.held._version == self.version:
                return
            self.version = self.held._version  # writing it back does not count
        self.write(self.held, self.first)


class OwnState:
    """The first values of what a module owns beside its parameters and buffers.

    It owns what a deep copy copies: attributes of its modules and of the objects that they hold, lists, dictionaries, sets, arrays, tensors and generators of
    random numbers. Attributes of the classes of these objects count, too, since a pass may write them.

    Args:
        module: the module.
        copies: the objects that `atoll.torch.models.copy_owned` made with it.
        whole: whether its buffers count, too, since nothing else keeps them.
    """

    def __init__(self, module: nn.Module, copies: Iterable[Any], *, whole: bool = False) -> None:
        self.module, self.whole, self._copies = module, whole, [*copies]
        known = {id(t) for t in (*module.parameters(), *(() if whole else module.buffers()))}
        kept = dict[int, _Kept]()
        classes = dict[type, None]()
        for copied in self._copies:
            if id(copied) in known:
                continue
            self._keep(copied, kept)
            if hasattr(copied, "__dict__"):
                classes |= dict.fromkeys(kind for kind in type(copied).__mro__ if is_foreign(kind))
            for hook in _hooks_of(copied):
                for held in _captured(hook):
                    self._keep(held, kept)
        for kind in classes:
            self._keep_class(kind, kept)
            for name, cache in _caches_of(kind):
                kept[id(cache)] = _Kept(cache, _count_entries, _clear_cache, _count_entries(cache), _Named(name))
        self._kept = kept

    def __getstate__(self) -> dict[str, Any]:
        # Attributes of an instance are a dictionary that no other process has: there, all is found anew, at its first values, which between two trainings it has.
        return {"module": self.module, "copies": self._copies, "whole": self.whole}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        OwnState.__init__(self, **state)

    def _keep(self, held: Any, kept: dict[int, _Kept]) -> None:
        if id(held) in kept or isinstance(held, type | ModuleType):
            return
        for kind, read, write in _KINDS:
            if isinstance(held, kind):
                kept[id(held)] = _Kept(held, read, write, read(held), version=getattr(held, "_version", 0))
                break
        own = getattr(held, "__dict__", None)
        if isinstance(own, dict):
            kept[id(own)] = _Kept(own, dict, write_keys, dict(own), held)
            if isinstance(held, nn.Module):  # made anew when a module is copied, so no copies
                for part in ("_parameters", "_buffers", "_modules"):
                    inner = own[part]
                    kept[id(inner)] = _Kept(inner, dict, write_keys, dict(inner))
        slots = _slots_of(held)
        if slots:
            kept[-id(held)] = _Kept(held, _read_slots, _write_slots, _read_slots(held), held)

    def _keep_class(self, kind: type, kept: dict[int, _Kept]) -> None:
        kept[id(kind)] = _Kept(kind, read_class, write_class, read_class(kind), kind)
        waiting = list(read_class(kind).values())
        while waiting:
            value = waiting.pop()
            if isinstance(value, tuple):
                waiting.extend(value)
            elif isinstance(value, dict | list | set | deque | np.ndarray | Tensor) and id(value) not in kept:
                self._keep(value, kept)
                waiting.extend(value.values() if isinstance(value, dict) else value if not _is_array(value) else ())

    @classmethod
    def of_loss(cls, loss: Any) -> tuple[Any, OwnState]:
        """Return a copy of a loss, or of a loop, that is an object or a method of one, with all that it owns; a function as it is."""
        plain = not hasattr(loss, "__dict__") or isinstance(loss, type | FunctionType)
        plain = plain or (isinstance(loss, MethodType) and isinstance(loss.__self__, type | ModuleType))
        copies = dict[int, Any]()
        try:
            made = loss if plain else deepcopy(loss, copies)
        except Exception:  # it holds what cannot be copied
            return loss, cls(nn.Module(), ())
        copies.pop(id(copies), None)
        whose = made.__self__ if isinstance(made, MethodType) else made
        return made, cls(whose if isinstance(whose, nn.Module) else nn.Module(), copies.values(), whole=True)

    def restore(self) -> None:
        """Put everything back to its first value."""
        for one in self._kept.values():
            one.restore()

    def list_changes(self) -> list[str]:
        """Return what differs from its first value: ``module.attribute``, or ``Class.attribute``."""
        names = {id(layer): name for name, layer in self.module.named_modules()}
        found, inside = list[str](), set[int]()
        for one in self._kept.values():
            keys = _changed_keys(one)
            if not keys:
                continue
            if isinstance(one.owner, _Named):
                found.append(one.owner.name)
            elif isinstance(one.owner, type):
                found += [f"{one.owner.__name__}.{key}" for key in keys]
            elif id(one.owner) in names and one.owner is not None:
                found += [_join(names[id(one.owner)], key) for key in keys if _counts(one.owner, key)]
            else:
                inside.add(id(one.held))
        found = list(dict.fromkeys([*found, *self._names_of(inside)]))
        return found or (["state of its own"] if inside and self.whole else [])

    def _names_of(self, inside: set[int]) -> Iterator[str]:
        """Yield the attributes through which objects are reached."""
        if not inside:
            return
        stop = {id(layer) for layer in self.module.modules()}
        for prefix, layer in self.module.named_modules():
            for key, value in vars(layer).items():
                if _counts(layer, key) and _reaches(value, inside, stop):
                    yield _join(prefix, key)
            if any(_reaches(hook, inside, stop) for hook in _hooks_of(layer)):
                yield _join(prefix, "hooks")
        classes = (one.owner for one in self._kept.values() if isinstance(one.owner, type))
        for kind in classes:
            for key, value in read_class(kind).items():
                if _reaches(value, inside, stop):
                    yield f"{kind.__name__}.{key}"


MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of every module."""


def _counts(layer: Any, key: str) -> bool:
    """Tell whether an attribute of a module is state of its own: not what PyTorch keeps, or makes of parameters before each pass."""
    if key in MODULE_ATTRIBUTES or (isinstance(layer, nn.RNNBase) and key.startswith("_flat_weight")):
        return False
    return not (layer._forward_pre_hooks and isinstance(vars(layer).get(key), Tensor))


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def is_foreign(kind: Any) -> bool:
    """Tell whether a class, or a function, is neither Python's nor PyTorch's, NumPy's or Atoll's."""
    root = (kind.__module__ or "").partition(".")[0]
    return root not in ("torch", "numpy", "atoll") and (root == "__main__" or root not in sys.stdlib_module_names)


def _slots_of(held: Any) -> list[str]:
    if not is_foreign(type(held)):
        return []
    found = (vars(kind).get("__slots__", ()) for kind in type(held).__mro__)
    return [name for names in found for name in ((names,) if isinstance(names, str) else names) if "__" not in name]


def _read_slots(held: Any) -> dict[str, Any]:
    return {name: getattr(held, name) for name in _slots_of(held) if hasattr(held, name)}


def _write_slots(held: Any, first: Mapping[str, Any]) -> None:
    for name in _slots_of(held):
        if name in first:
            setattr(held, name, first[name])
        elif hasattr(held, name):
            delattr(held, name)


def read_class(kind: type) -> dict[str, Any]:
    """Return a class's data attributes."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__")
        and not callable(value)
        and not hasattr(type(value), "__get__")
        and name != "_abc_impl"
    }


def write_class(kind: type, first: Mapping[str, Any]) -> None:
    """Write data attributes into a class."""
    now = read_class(kind)
    for name in now.keys() - first.keys():
        delattr(kind, name)
    for name, value in first.items():
        if now.get(name, read_class) is not value:
            setattr(kind, name, value)


@dataclass(frozen=True)
class _Named:
    """The owner of something that has a name of its own."""

    name: str


def _hooks_of(held: Any) -> list[Any]:
    """Return a module's own hooks; PyTorch's are no state."""
    if not isinstance(held, nn.Module):
        return []
    return [
        hook
        for hook in (*held._forward_hooks.values(), *held._forward_pre_hooks.values())
        if isinstance(hook, FunctionType)
    ]


def _captured(function: Any) -> Iterator[Any]:
    """Yield what a function holds in its closure: a deep copy of a module shares it with the module."""
    seen, waiting = set[int](), [function]
    while waiting:
        held = waiting.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, FunctionType):
            waiting += _cells_of(held)
            continue
        if isinstance(held, nn.Parameter | type | ModuleType):
            continue
        own = getattr(held, "__dict__", None)
        if isinstance(own, dict) and (isinstance(held, nn.Module) or is_foreign(type(held))):
            yield held
            waiting += [value for key, value in own.items() if key not in MODULE_ATTRIBUTES]
            waiting += held.children() if isinstance(held, nn.Module) else ()
        elif isinstance(held, dict | list | set | deque | np.ndarray | Tensor):
            yield held
            waiting += held.values() if isinstance(held, dict) else () if _is_array(held) else held
        elif isinstance(held, tuple):
            waiting += held


def _cells_of(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a name that is not bound yet
            found.append(cell.cell_contents)
    return found


_Cache = type(lru_cache(len))
"""What `functools.lru_cache` returns."""


def _caches_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the caches of a class's methods, and of functions of its module that these call, by name: a cached tensor belongs to the pass that made it."""
    for name, value in vars(kind).items():
        if isinstance(value, _Cache):
            yield f"{kind.__name__}.{name}", value
    seen, waiting = set[int](), [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, _Cache):
                yield f"{function.__module__}.{name}", value
            elif isinstance(value, FunctionType) and value.__module__ == kind.__module__:
                waiting.append(value)


def _count_entries(cache: Any) -> dict[str, int]:
    return {"entries": cache.cache_info().currsize}


def _clear_cache(cache: Any, first: Mapping[str, int]) -> None:
    if _count_entries(cache) != first:
        cache.cache_clear()


def _changed_keys(one: _Kept) -> list[str]:
    """Return the attributes of an instance or a class that differ; of another object one word if it does."""
    if isinstance(one.held, Tensor):
        same = one.held._version == one.version and _same_tensors(one.first, one.held.detach())
        return [] if same else ["contents"]
    now = one.read(one.held)
    if one.owner is None:
        return [] if equal_values(one.first, now) else ["contents"]
    return [
        key
        for key in {**one.first, **now}
        if not equal_values(one.first.get(key, MODULE_ATTRIBUTES), now.get(key, MODULE_ATTRIBUTES))
    ]


def equal_values(one: Any, other: Any, depth: int = 0) -> bool:
    """Tell whether two values are the same object, or equal ones; what an object holds is compared on its own."""
    if one is other:
        return True
    if isinstance(one, Tensor):  # a moving average may begin with the values that it moves to
        return False
    if type(one) is not type(other) or depth > 50:
        return False
    if isinstance(one, np.ndarray):
        floats = one.dtype.kind in "fc"
        return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=floats))
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            equal_values(value, other[key], depth + 1) for key, value in one.items()
        )
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(equal_values(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    try:
        return bool(one == other) or bool(one != one and other != other)
    except Exception:
        return False


def _same_tensors(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    try:
        return bool(
            torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)
        )
    except Exception:  # of a transformation that has ended
        return False


def _reaches(value: Any, wanted: set[int], stop: set[int]) -> bool:
    """Tell whether one of these objects is held by a value, through containers, attributes and closures, without passing the objects of ``stop``."""
    seen, waiting = set[int](), [value]
    while waiting:
        held = waiting.pop()
        if id(held) in seen or id(held) in stop or isinstance(held, type | ModuleType):
            continue
        seen.add(id(held))
        own = getattr(held, "__dict__", None)
        if id(held) in wanted or id(own) in wanted:
            return True
        waiting += [*own.values()] if isinstance(own, dict) else []
        waiting += _cells_of(held) if isinstance(held, FunctionType) else []
        waiting += [*_read_slots(held).values()]
        if isinstance(held, dict):
            waiting += held.values()
        elif isinstance(held, list | tuple | set | frozenset | deque):
            waiting += held
    return False


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators that a model may draw from."""
    numpy: Any = np.random.get_state()  # noqa: NPY002 - what models of users draw from
    return {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "numpy.random": (numpy[1].tobytes(), *numpy[2:]),
        "random": random.getstate(),
    }


@contextmanager
def seed_generators(key: int) -> Iterator[None]:
    """Seed the global generators of PyTorch, NumPy and Python for one client's training, and put them back afterwards.

    Args:
        key: the client's random key.
    """
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002 - what models of users draw from
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key >> 1)
            np.random.seed(key % 2**32)  # noqa: NPY002 - as above
            random.seed(key)
            yield
    finally:
        np.random.set_state(numpy)  # noqa: NPY002 - as above
        random.setstate(python)
