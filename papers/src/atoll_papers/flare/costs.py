"""What a scheme costs a parameter: bytes, and processor time to encrypt, to add and to decrypt."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import BFV, CKKS, BatchCrypt, Digits, Paillier, Scheme

from .nvflare import NVFlareCKKS

__all__ = ["BASE", "BITS", "PARTIES", "SchemeCost", "measure", "schemes"]

PARTIES, BITS = 100, 14
"""Numbers have 14 bits at each of 100 parties, so that sums have 21."""
BASE = "CKKS, NVFlare's defaults"


@dataclass(frozen=True)
class SchemeCost:
    """Medians a parameter.

    Attributes:
        bytes: of a party's ciphertext.
        encrypt: microseconds of processor time at a party.
        add: microseconds at the server for each party's ciphertext.
        decrypt: microseconds for the sum.
    """

    bytes: float
    encrypt: float
    add: float
    decrypt: float


@dataclass
class _Row:
    size: int
    encrypt: Callable[[Any], Any]
    add: Callable[[Any], Any]
    decrypt: Callable[[Any], Any]


def schemes() -> dict[str, Scheme]:
    """Return Atoll's schemes by the names of tables."""
    return {
        "CKKS": CKKS(),
        "BFV": BFV(),
        "Paillier 2048": Paillier(),
        "Paillier 3072": Paillier(key_bits=3072),
        "BatchCrypt 2048": BatchCrypt(),
    }


def measure(parameters: int, runs: int, chosen: Mapping[str, Scheme]) -> dict[str, SchemeCost]:
    """Measure NVFlare's defaults and the schemes in turn, so that a busy period does not hit one alone.

    Args:
        parameters: how many; Paillier, whose cost is linear, encrypts a twentieth of them.
        runs: of each; the medians count.
        chosen: name -> scheme.

    Raises:
        DataError: a scheme gives wrong sums.
    """
    base = NVFlareCKKS(BITS)
    rows = {BASE: _Row(parameters, base.encrypt, base.add, base.decrypt)}
    for name, scheme in chosen.items():
        size = parameters // 20 if isinstance(scheme, Paillier) else parameters
        rows[name] = _row(scheme, size)
    numbers = np.random.default_rng(0).integers(0, 2**BITS, (2, parameters), dtype=np.uint64)
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in rows}
    sizes: dict[str, int] = {}
    for _ in range(runs):
        for name, row in rows.items():
            mine = numbers[:, : row.size]
            first, one = _timed(row.encrypt, mine[0])
            second, total = _timed(row.add, [one, row.encrypt(mine[1])])
            third, sums = _timed(row.decrypt, total)
            if not np.array_equal(sums, mine.sum(axis=0)):
                raise DataError("sums that are not those of the numbers", where=name, remedy="report it")
            sizes[name] = sum(map(len, one)) if isinstance(one, list) else one.nbytes
            seconds[name].append((first, second / 2, third))
    return {name: _cost(rows[name].size, sizes[name], seconds[name]) for name in rows}


def _row(scheme: Scheme, size: int) -> _Row:
    form = [Digits(size, BITS, PARTIES)]
    public, private = scheme.make_keys(Secret())
    small = [Digits(1, BITS, PARTIES)]
    scheme.encrypt(public, [np.zeros(1, np.uint64)], small, Secret())  # tables and contexts are made once a key
    return _Row(
        size,
        lambda numbers: scheme.encrypt(public, [numbers], form, Secret()),
        lambda sealed: scheme.add(public, sealed, form),
        lambda sealed: scheme.decrypt(private, sealed, form)[0],
    )


def _cost(size: int, nbytes: int, seconds: list[tuple[float, float, float]]) -> SchemeCost:
    encrypt, add, decrypt = (1e6 * statistics.median(column) / size for column in zip(*seconds, strict=True))
    return SchemeCost(nbytes / size, encrypt, add, decrypt)


def _timed(work: Callable[[Any], Any], given: Any) -> tuple[float, Any]:
    start = time.process_time()
    made = work(given)
    return time.process_time() - start, made
