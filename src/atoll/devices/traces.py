"""Traces: which devices crash, by turn, and when; as rules, and as files in NumPy's zipped form with a checked header."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.persistence.files import write_bytes
from atoll.core.validation import Checked

from .traits import DrawnPopulation, Trait, key_of, lift, probability, uniforms

__all__ = [
    "FORMAT",
    "VERSION",
    "GeneratedTrace",
    "Recorded",
    "Span",
    "Trace",
    "check_version",
    "digest",
    "load_trace",
    "pack_crashes",
    "read_arrays",
    "read_trace",
    "unpack_crashes",
    "write_arrays",
    "write_trace",
]


# Arrays in one file: NumPy's zipped form with a JSON header, never pickled, with checked contents.


def write_arrays(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Path:
    """Write a header and arrays.

    Raises:
        CheckpointError: the file cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
    write_bytes(path, content.getvalue())
    return path


def read_arrays(path: Path, noun: str, remedy: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The inverse of ``write_arrays``.

    Args:
        path: the file.
        noun: what the file contains, for errors.
        remedy: where such a file comes from.

    Raises:
        ConfigError: there is no file, or it contains something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            return json.loads(str(arrays.pop("header")[()])), arrays
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), remedy=f"record a {noun} and save it") from error
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ConfigError(f"the file is not a {noun}: {error}", where=str(path), remedy=remedy) from error


def check_version(path: Path, noun: str, found: int, version: int) -> None:
    """Refuse files of later versions.

    Raises:
        ConfigError: the file is of a later version.
    """
    if found > version:
        raise ConfigError(
            f"the {noun} has version {found}, but this Atoll reads up to {version}",
            where=str(path),
            remedy="use a later Atoll",
        )


def digest(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """A digest of a file's header and arrays, without the digest itself."""
    found = hashlib.sha256(json.dumps({k: v for k, v in header.items() if k != "digest"}, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"|{name} {array.dtype.str} {array.shape}|".encode())
        found.update(array.tobytes())
    return found.hexdigest()


# Traces as files: a trace in NumPy's zipped form, with a checked header.


FORMAT = "atoll trace of devices"
VERSION = 1
_REMEDY = "give a file that Recorded.save wrote"
_FIELDS = {"format": str, "version": int, "turns": int, "devices": int, "within": str, "digest": str}


def pack_crashes(
    crashed: NDArray[np.bool_], point: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The crashes as bits, and the points of the crashes in order."""
    return np.packbits(crashed), np.asarray(point[crashed], dtype="<f8")


def unpack_crashes(
    bits: NDArray[np.uint8], points: NDArray[np.float64], turns: int, devices: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The inverse of ``pack_crashes``.

    Raises:
        ValueError: the numbers of points and crashes differ.
    """
    crashed = np.unpackbits(bits, count=turns * devices).astype(bool).reshape(turns, devices)
    if points.shape != (int(crashed.sum()),):
        raise ValueError(f"{len(points)} points for {int(crashed.sum())} crashes")
    point = np.zeros((turns, devices))
    point[crashed] = points
    return crashed, point


def write_trace(path: Path, crashed: NDArray[np.bool_], point: NDArray[np.float64], within: str) -> Path:
    """Write a trace to a file; see ``pack_crashes``.

    Raises:
        CheckpointError: the file cannot be written.
    """
    bits, points = pack_crashes(crashed, point)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "turns": crashed.shape[0],
        "devices": crashed.shape[1],
        "within": within,
        "digest": _digest_trace(bits, points),
    }
    return write_arrays(path, header, {"crashed": bits, "points": points})


def read_trace(path: Path) -> tuple[NDArray[np.bool_], NDArray[np.float64], Literal["training", "response"]]:
    """The inverse of ``write_trace``.

    Raises:
        ConfigError: the file is not a trace, is of a later version, or is damaged.
    """
    header, arrays = read_arrays(path, "trace", _REMEDY)
    _check_header(path, header)
    if not {"crashed", "points"} <= arrays.keys():
        raise _refuse_file(path, "the file is not a trace: arrays are missing")
    bits, points = arrays["crashed"], arrays["points"]
    turns, devices = header["turns"], header["devices"]
    sized = bits.dtype == np.uint8 and bits.shape == (-(-turns * devices // 8),) and points.dtype == np.dtype("<f8")
    if not sized or header["digest"] != _digest_trace(bits, points):
        raise _refuse_file(path, "the file is damaged: its contents do not match its header")
    try:
        crashed, point = unpack_crashes(bits, points, turns, devices)
    except ValueError as error:
        raise _refuse_file(path, f"the file is damaged: {error}") from error
    return crashed, point, header["within"]


def _check_header(path: Path, header: Any) -> None:
    said = isinstance(header, dict) and header.get("format") == FORMAT
    if not said or any(not isinstance(header.get(name), kind) for name, kind in _FIELDS.items()):
        raise _refuse_file(path, "the file is not a trace: it has another header")
    check_version(path, "trace", header["version"], VERSION)
    if header["turns"] < 1 or header["devices"] < 1 or header["within"] not in ("training", "response"):
        raise _refuse_file(path, "the file is damaged: its header is invalid")


def _refuse_file(path: Path, what: str) -> ConfigError:
    return ConfigError(what, where=str(path), remedy=_REMEDY)


def _digest_trace(bits: NDArray[np.uint8], points: NDArray[np.float64]) -> str:
    return hashlib.sha256(bits.tobytes() + b"|" + points.tobytes()).hexdigest()


Span = Literal["training", "response"]
"""The base of crash points: the training, or everything from the download to the upload."""
Law = Literal["during", "before", "uniform"]


@dataclass(frozen=True)
class Trace(Checked):
    """Which devices crash in which turn, and how far they get."""

    @property
    def span(self) -> Span:
        """What ``point`` is a share of."""
        raise NotImplementedError

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Whether each of these devices crashes in a turn, and at which point, in [0, 1)."""
        raise NotImplementedError

    def require_turns(self, last: int, devices: int) -> None:
        """Refuse a run of this many devices whose last turn is not in the trace."""
        del last, devices

    def check_regions(self, names: tuple[str, ...]) -> None:
        """Refuse regions that do not exist."""
        del names


@dataclass(frozen=True, eq=False)
class GeneratedTrace(Trace):
    """Crashes as a pure function of seed, turn and device, independent of the devices asked and their order.

    Args:
        crash: probability that a device crashes in a turn.
        point: where in its work a device crashes: anywhere ``"during"`` its training, ``"before"`` it, at a ``"uniform"`` instant of its whole response,
            or at a given share of its training.
        outage: additional probability that a whole region crashes in a turn.
        seed: seed of the draws.
    """

    crash: Trait = 0.0
    point: Law | float = "during"
    outage: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "crash", probability(self.crash, "crash", "GeneratedTrace"))
        probability(self.outage, "outage", "GeneratedTrace")
        fixed = isinstance(self.point, int | float)
        if not (0.0 <= self.point < 1.0 if fixed else self.point in get_args(Law)):  # type: ignore[operator]
            raise ConfigError(
                f"point={self.point!r}",
                where="GeneratedTrace",
                remedy="use 'during', 'before', 'uniform', or a share of the training from 0 to below 1",
            )

    @property
    def span(self) -> Span:
        """The whole response for ``"uniform"``, else the training."""
        return "response" if self.point == "uniform" else "training"

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Draw the crashes."""
        chance = population.column(lift(self.crash), key_of(self.seed, "crash probability"), positions)
        crashed = uniforms(key_of(self.seed, "crash", turn), positions) < chance
        if self.outage:
            out = uniforms(key_of(self.seed, "outage", turn), np.arange(len(population.names))) < self.outage
            crashed |= out[population.region[positions]]
        if self.point in ("during", "uniform"):
            return crashed, uniforms(key_of(self.seed, "point", turn), positions)
        return crashed, np.full(len(positions), 0.0 if self.point == "before" else float(self.point))

    def check_regions(self, names: tuple[str, ...]) -> None:
        """Refuse regions that do not exist."""
        lift(self.crash).check_regions(names, "crash")


@dataclass(frozen=True, eq=False)
class Recorded(Trace):
    """Crashes as arrays: recorded from a fleet, measured by you, or a mixture.

    Attributes:
        crashed: by turn and device, shape ``(turns, devices)``. The rounds of a training are its turns 1, 2, ...; row 0 is for the time before.
        point: how far each device gets if it crashes; elsewhere 0. Shape ``(turns, devices)``.
        within: what ``point`` is a share of.
        wrap: whether to start again after the last turn, instead of raising an error.
    """

    crashed: NDArray[np.bool_]
    point: NDArray[np.float64]
    within: Span = "training"
    wrap: bool = False
    _where: str = field(default="trace", repr=False)

    def __post_init__(self) -> None:
        crashed = np.asarray(self.crashed)
        if crashed.ndim != 2 or crashed.dtype != np.bool_ or not len(crashed):
            raise ConfigError(
                f"crashed has shape {crashed.shape} and dtype {crashed.dtype}",
                where=self._where,
                remedy="give booleans of shape (turns, devices)",
            )
        point = np.where(crashed, np.asarray(self.point, dtype=np.float64), 0.0)
        if not ((point >= 0.0) & (point <= 1.0)).all():
            raise ConfigError("point has values outside [0, 1]", where=self._where, remedy="give shares of the work")
        if self.within not in get_args(Span):
            raise ConfigError(f"within={self.within!r}", where=self._where, remedy="use 'training' or 'response'")
        for name, column in (("crashed", crashed), ("point", point)):
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        """The number of turns."""
        return len(self.crashed)

    def __getitem__(self, which: Any) -> Recorded:
        """Some turns, or turns and devices: ``trace[:10]``, ``trace[:, :50]``. The first turn of the slice becomes turn 0."""
        return replace(self, crashed=self.crashed[which].copy(), point=self.point[which].copy())

    @property
    def span(self) -> Span:
        """The span that was recorded."""
        return self.within

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Look up the crashes.

        Raises:
            ConfigError: the trace is shorter than the run, or has other devices.
        """
        self._require(f"turn {turn} is requested", turn, population.size)
        row = turn % len(self)
        return self.crashed[row, positions], self.point[row, positions]

    def require_turns(self, last: int, devices: int) -> None:
        """Refuse a run that is longer than the trace, or has other devices.

        Raises:
            ConfigError: the run is longer, or has other devices.
        """
        self._require(f"the run has turns up to {last}", last, devices)

    def _require(self, what: str, turn: int, size: int) -> None:
        turns, devices = self.crashed.shape
        if size != devices:
            raise ConfigError(
                f"the trace has {devices} devices but the run has {size}",
                where=self._where,
                remedy="record a trace for this population",
            )
        if turn >= turns and not self.wrap:
            raise ConfigError(
                f"{what}, but the trace has {turns} (0 to {turns - 1})",
                where=self._where,
                remedy="record more turns, or start again after the last with wrap=True",
            )

    def save(self, path: str | Path) -> Path:
        """Write the trace to one file: NumPy's zipped arrays with a checked header, never pickled."""
        return write_trace(Path(path), self.crashed, self.point, self.within)


@checked_call
def load_trace(path: str | Path, wrap: bool = False) -> Recorded:
    """Read a trace from a file.

    Args:
        path: the file.
        wrap: whether to start again after the last turn.

    Raises:
        ConfigError: the file is not a trace, is of a later version, or is damaged.
    """
    crashed, point, within = read_trace(Path(path))
    return Recorded(crashed, point, within, wrap, str(path))
