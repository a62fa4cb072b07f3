"""Run one secure sum of arrays, and compare it with the exact one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, DataError
from atoll.core.federation.federation import run_program
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched
from atoll.secure.indexing import SecureIndexing
from atoll.testing import Timetable

from .encodings import ENCODINGS
from .protocols import INDEXING, PROTOCOLS
from .settings import SumSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Island
    from atoll.core.requests.results import Combined

    from .encodings import Encoding
    from .protocols import Protocol

__all__ = ["arrays_in", "reply", "run_trial"]


@task
def reply(island: Island, message: Tree) -> Tree:
    """Reply with the party's array, to be added up."""
    del message
    return {"x": Sum({"x": island.data})}


def arrays_in(folder: Path, out: Path | None = None) -> dict[str, NDArray[np.float64]]:
    """One array a party: the ``.npy`` files of a folder, by name, without the file for the sum.

    Raises:
        DataError: there are fewer than two, or one cannot be added to the others.
    """
    files = sorted(file for file in folder.glob("*.npy") if out is None or file.resolve() != out.resolve())
    if len(files) < 2:
        raise DataError(
            f"{len(files)} .npy files", where=str(folder), remedy="put one array a party there, of 2 parties or more"
        )
    found = {file.stem: _numbers(file) for file in files}
    first = next(iter(found.values()))
    for name, array in found.items():
        if array.shape != first.shape:
            raise DataError(
                f"shape {array.shape}, but {next(iter(found))} has {first.shape}",
                where=f"{name}.npy",
                remedy="give every party an array of the same shape",
            )
    with np.errstate(over="ignore", invalid="ignore"):
        most = np.sum([np.abs(np.where(np.isfinite(a), a, 0.0)) for a in found.values()], axis=0).max(initial=0.0)
    if not np.isfinite(most):
        raise DataError(
            "numbers whose sum is above the largest double, 1.8e308", where=str(folder), remedy="scale them down"
        )
    return found


def _numbers(file: Path) -> NDArray[np.float64]:
    """The array of a file.

    Raises:
        DataError: it holds no array of real numbers.
    """
    try:
        made = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"an array that cannot be read: {error}", where=str(file), remedy="save numbers with np.save"
        ) from error
    if not isinstance(made, np.ndarray) or made.dtype.kind not in "iufb":
        kind = f"an array of {made.dtype}" if isinstance(made, np.ndarray) else "an archive of arrays"
        raise DataError(kind, where=str(file), remedy="save one array of real numbers a party with np.save")
    return made.astype(np.float64)


def run_trial(
    arrays: Mapping[str, NDArray[np.float64]], protocol: str, encode: str, settings: SumSettings
) -> dict[str, Any]:
    """Add up arrays by a protocol, and return what it gave and what it cost.

    Returns:
        The facts that ``atoll secure sum --json`` prints, and the sum itself under ``"sum"``.

    Raises:
        ConfigError: the protocol or encoding is not known, or they do not go together.
        AtollError: the sum was aborted.
    """
    chosen = _row(PROTOCOLS, "protocol", protocol)
    make = chosen.fixed or _row(ENCODINGS, "encoding", encode)
    if encode not in chosen.encodings:
        raise ConfigError(
            f"--encode {encode} with --protocol {protocol}", remedy=f"use --encode {', '.join(chosen.encodings)}"
        )
    if settings.norm is None:
        settings = replace(settings, norm=_longest(arrays.values()))
    encoding = make(settings, list(arrays.values()))
    each = encoding.bits_per_weight
    reducer: Reducer
    reducer, helpers, lost = chosen.make(settings, encoding.codec, len(arrays)), chosen.others, chosen
    if encode == "pq" and chosen.indices is not None:
        reducer = by = chosen.indices(encoding.codewords, len(arrays))
        # An enclave gets indices; servers get shares or keys, which are longer.
        enclave = SecureIndexing().block_bits(encoding.codewords, len(arrays))
        each *= by.block_bits(encoding.codewords, len(arrays)) / enclave
        helpers, lost = dict.fromkeys(reducer.others), replace(chosen, steps=INDEXING)
    began = time.perf_counter()
    found = _run_sum(arrays, reducer, encoding, settings.seed, helpers, _draw_dropouts(lost, list(arrays), settings))
    seconds = time.perf_counter() - began
    inside = {name: arrays[name] for name in found.senders.names}
    plain = _run_sum(inside, Plain(), encoding, settings.seed) if encoding.uplink else None
    exact = np.sum(list(inside.values()), axis=0)
    total = np.asarray(found["x"]["x"])
    size = max(1, exact.size)
    return {
        "protocol": protocol,
        "encode": encode,
        "parties": len(arrays),
        "survivors": found.n,
        "senders": list(found.senders.names),
        "rejected": dict(found.rejected),
        "max_error": float(np.abs(total - exact).max(initial=0.0)),
        "bound": encoding.bound(found.n),
        "modulus_bits": encoding.modulus_bits,
        "clamped": _share((plain or found).counts, "clamped", "coded"),
        "overflowed": _share((plain or found).counts, "overflowed", "words"),
        "wrong_shares": found.counts.get("wrong_shares", 0),
        "bits_per_weight": each,
        "bytes_up": found.bytes_up,
        "bytes_per_weight": found.bytes_up / (size * len(arrays)),
        "seconds": seconds,
        "sum": total,
    }


def _run_sum(
    arrays: Mapping[str, NDArray[np.float64]],
    reducer: Reducer,
    encoding: Encoding,
    seed: int,
    others: Mapping[str, Any] | None = None,
    lost: Mapping[str, list[str]] | None = None,
) -> Combined:
    """One sum in a simulated world."""
    world = World(
        Community(dict(arrays), others=dict(others or {})),
        Batched(),
        seed=seed,
        cost=Timetable(lost=lost or {}),
        errors="raise",
    )
    who = list(arrays)
    made: Combined = run(
        run_program(world, lambda fed: fed.sum(fed.parties.named(*who), reply, reducer=reducer, uplink=encoding.uplink))
    )[0]
    return made


def _draw_dropouts(protocol: Protocol, names: list[str], settings: SumSettings) -> dict[str, list[str]]:
    """Who drops out at which step: other parties at each, drawn by the seed.

    Raises:
        ConfigError: the protocol has no such step, or more parties would drop out than there are.
    """
    if sum(settings.drop.values()) > len(names):
        raise ConfigError(
            f"--drop of {sum(settings.drop.values())} parties, but there are {len(names)}", remedy="let fewer drop out"
        )
    drawn, found = iter(np.random.default_rng(settings.seed).permutation(names).tolist()), dict[str, list[str]]()
    for step, count in settings.drop.items():
        if step not in protocol.steps:
            raise ConfigError(
                f"--drop {step}:{count}", remedy=f"this protocol has the steps {', '.join(protocol.steps)}"
            )
        found.setdefault(protocol.steps[step], []).extend(next(drawn) for _ in range(count))
    return found


def _longest(arrays: Iterable[NDArray[np.float64]]) -> float:
    """The largest finite norm of an array; 1 if there is none above 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.array([np.linalg.norm(a) for a in arrays])
    return float(norms[np.isfinite(norms)].max(initial=0.0)) or 1.0


def _share(counts: Mapping[str, int], what: str, of: str) -> float:
    return counts.get(what, 0) / counts[of] if counts.get(of) else 0.0


def _row(table: Mapping[str, Any], kind: str, name: str) -> Any:
    if name not in table:
        raise ConfigError(f"{kind} {name!r}", where="atoll secure sum", remedy=f"use one of {', '.join(table)}")
    return table[name]
