"""Recorded fleets as files: rules by name with plain settings, as in configurations, and every draw as an array."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError

from .availability import Windows
from .distributions import Equal
from .fleet import Fleet
from .rules import Backhaul, BatchRate, Battery, Cycles, DeviceMemory, Power, Shannon, Throughput
from .traces import Recorded, check_version, digest, pack_crashes, read_arrays, unpack_crashes, write_arrays
from .traits import GivenTraits

__all__ = ["FORMAT", "VERSION", "load_fleet", "write_fleet"]


# Recorded fleets as files: rules by name with plain settings, as in configurations, and every draw as an array.


FORMAT = "atoll fleet of devices"
VERSION = 1
_REMEDY = "give a file that Fleet.save wrote"
_KNOWN: dict[str, Any] = {
    part.__name__: part
    for part in (Fleet, BatchRate, Cycles, Throughput, Shannon, Backhaul, Power, Battery, DeviceMemory, Equal, GivenTraits, Recorded, Windows)
}  # fmt: skip
"""All types that a file may name: a closed list. Nothing is imported by name."""

Arrays = dict[str, NDArray[Any]]


def write_fleet(path: Path, fleet: Fleet) -> Path:
    """Write a recorded fleet; see ``Fleet.save``."""
    arrays: Arrays = {}
    header = {"format": FORMAT, "version": VERSION, "rules": _serialise(fleet, "fleet", arrays)}
    return write_arrays(path, header | {"digest": digest(header, arrays)}, arrays)


@checked_call
def load_fleet(path: str | Path, wrap: bool = False) -> Fleet:
    """Read a recorded fleet from a file.

    Args:
        path: the file.
        wrap: whether to start again after the last turn of its trace.

    Raises:
        ConfigError: the file is not a fleet, is of a later version, or is damaged.
    """
    place = Path(path)
    header, arrays = read_arrays(place, "fleet", _REMEDY)
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("version"), int):
        _refuse_file(place, "the file is not a fleet: it has another header")
    check_version(place, "fleet", header["version"], VERSION)
    if header.get("digest") != digest(header, arrays):
        _refuse_file(place, "the file is damaged: its contents do not match its header")
    try:
        found = _restore(header.get("rules"), "fleet", arrays, {"wrap": wrap, "_where": str(place)})
    except ConfigError as error:
        raise ConfigError(f"the file is not a fleet: {error.what}", where=str(place), remedy=_REMEDY) from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise ConfigError(f"the file is not a fleet: {error}", where=str(place), remedy=_REMEDY) from error
    if not isinstance(found, Fleet):
        _refuse_file(place, "the file is not a fleet: it has another header")
    return found


def _refuse_file(path: Path, what: str) -> NoReturn:
    raise ConfigError(what, where=str(path), remedy=_REMEDY)


def _serialise(value: Any, path: str, arrays: Arrays) -> Any:
    """A part as plain data; its arrays are stored separately under their path."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if _KNOWN.get(type(value).__name__) is not type(value):
        raise ConfigError(
            f"a fleet file cannot contain {type(value).__name__}",
            where=f"Fleet.save: {path}",
            remedy="save what fleet.recorded(...) returns, with Atoll's own rules; with rules of your own, save only the trace",
        )
    if isinstance(value, GivenTraits | Windows | Recorded):
        arrays.update({f"{path}.{name}": column for name, column in _columns_of(value).items()})
    settings = [f.name for f in fields(value) if f.init and not f.name.startswith("_") and f.name not in _ASIDE]
    made = {"name": type(value).__name__}
    for name in settings:
        found = getattr(value, name)
        if name == "regions" and not isinstance(found, int | np.integer):
            names = list(dict.fromkeys(str(region) for region in found))
            arrays[f"{path}.regions"] = np.array([names.index(str(region)) for region in found], dtype="<i4")
            made[name] = names  # type: ignore[assignment]
        else:
            made[name] = _serialise(found, f"{path}.{name}", arrays)
    return made


_ASIDE = ("values", "windows", "crashed", "point", "wrap")
"""Settings that are arrays, or that the reader of the file gives."""


def _columns_of(value: GivenTraits | Windows | Recorded) -> Arrays:
    if isinstance(value, GivenTraits):
        return {"values": np.asarray(value.values, dtype="<f8")}
    if isinstance(value, Windows):
        return dict(zip(("who", "begin", "end"), value.columns, strict=True))
    bits, points = pack_crashes(value.crashed, value.point)
    return {"shape": np.array(value.crashed.shape, dtype="<i8"), "crashed": bits, "points": points}


def _restore(said: Any, path: str, arrays: Arrays, trace: dict[str, Any]) -> Any:
    """The inverse of ``_serialise``."""
    if not isinstance(said, dict):
        return said
    settings = {k: _restore(v, f"{path}.{k}", arrays, trace) for k, v in said.items() if k != "name"}
    part = _KNOWN[said["name"]]
    allowed = {f.name for f in fields(part) if f.init and not f.name.startswith("_") and f.name not in _ASIDE}
    if not settings.keys() <= allowed:
        raise ValueError(f"{sorted(settings.keys() - allowed)[0]!r} is not a setting of {said['name']}")

    def column(name: str) -> NDArray[Any]:
        return arrays[f"{path}.{name}"]

    if part is GivenTraits:
        settings["values"] = column("values")
    elif part is Windows:
        settings["windows"] = np.column_stack([column("who"), column("begin"), column("end")])
    elif part is Recorded:
        turns, devices = (int(n) for n in column("shape"))
        crashed, point = unpack_crashes(column("crashed"), column("points"), turns, devices)
        settings |= {"crashed": crashed, "point": point, **trace}
    elif part is Fleet and isinstance(settings["regions"], list):
        settings["regions"] = [settings["regions"][i] for i in column("regions")]
    return part(**settings)
