"""Measures what encrypting a parameter costs: bytes on the wire and microseconds at the client, the server and the key holder.

    python benchmarks/encryption.py
    python benchmarks/encryption.py --parameters 200000 --runs 9

Each line is one scheme of `atoll.secure.encrypted`; the first is CKKS with NVFlare's defaults, called as NVFlare calls TenSEAL (a ring of 8192, primes of
60, 40 and 40 bits, a scale of 2^40). Schemes take turns, so that a busy period does not hit one alone. Times are processor time, the median of the runs;
ratios are to NVFlare's defaults in the same run. Numbers have 14 bits at each of 100 parties, so that sums have 21. The slow schemes, whose cost is
linear, encrypt a twentieth of the parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import BFV, CKKS, BatchCrypt, Digits, Paillier

PARTIES, BITS = 100, 14


class Ours:
    """One of Atoll's schemes."""

    def __init__(self, scheme: Any, form: Digits) -> None:
        self.scheme, self.form = scheme, form
        self.public, self.private = scheme.make_keys(Secret())
        self.encrypt(np.zeros(form.size, np.uint64))  # tables and contexts are made once a key

    def encrypt(self, numbers: Any) -> Any:
        return self.scheme.encrypt(self.public, [numbers], [self.form], Secret())

    def add(self, sealed: Any) -> Any:
        return self.scheme.add(self.public, sealed, [self.form])

    def decrypt(self, sealed: Any) -> Any:
        return self.scheme.decrypt(self.private, sealed, [self.form])[0]


class NVFlare:
    """TenSEAL's CKKS with NVFlare's defaults."""

    def __init__(self, form: Digits) -> None:
        import tenseal as ts

        self.ts, self.form = ts, form
        self.context = ts.context(ts.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 40])
        self.context.global_scale = 2**40

    def encrypt(self, numbers: Any) -> Any:
        scaled = numbers.astype(np.float64) / 2**BITS
        rows = [scaled[at : at + 4096] for at in range(0, len(scaled), 4096)]
        return [self.ts.ckks_vector(self.context, row).serialize() for row in rows]

    def add(self, sealed: Any) -> Any:
        total = [self.ts.ckks_vector_from(self.context, raw) for raw in sealed[0]]
        for each in sealed[1:]:
            for left, raw in zip(total, each, strict=True):
                left += self.ts.ckks_vector_from(self.context, raw)
        return [each.serialize() for each in total]

    def decrypt(self, sealed: Any) -> Any:
        rows = [self.ts.ckks_vector_from(self.context, raw).decrypt() for raw in sealed]
        return np.rint(np.concatenate(rows) * 2**BITS).astype(np.uint64)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return processor seconds, and the result."""
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def size_of(sealed: Any) -> int:
    """Return the bytes of a ciphertext."""
    return sum(map(len, sealed)) if isinstance(sealed, list) else sealed.nbytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    form, few = Digits(args.parameters, BITS, PARTIES), Digits(args.parameters // 20, BITS, PARTIES)
    made = {
        "CKKS, NVFlare's defaults": NVFlare(form),
        "CKKS": Ours(CKKS(), form),
        "BFV": Ours(BFV(), form),
        "Paillier 2048": Ours(Paillier(), few),
        "Paillier 3072": Ours(Paillier(key_bits=3072), few),
        "BatchCrypt 2048": Ours(BatchCrypt(), few),
    }
    numbers = np.random.default_rng(0).integers(0, 2**BITS, (2, form.size), dtype=np.uint64)
    seconds: dict[str, list[list[float]]] = {name: [[], [], []] for name in made}
    sizes = {}
    for _ in range(args.runs):
        for name, each in made.items():
            mine = numbers[:, : each.form.size]
            once, sealed = timed(lambda each=each, mine=mine: each.encrypt(mine[0]))
            other = each.encrypt(mine[1])
            add, total = timed(lambda each=each, pair=(sealed, other): each.add(list(pair)))
            opened, sums = timed(lambda each=each, total=total: each.decrypt(total))
            if not np.array_equal(sums, mine.sum(axis=0)):
                raise SystemExit(f"{name}: wrong sums")
            sizes[name] = size_of(sealed)
            for kept, new in zip(seconds[name], (once, add / 2, opened), strict=True):
                kept.append(new)
    each = {name: 1e6 / made[name].form.size for name in made}
    medians = {name: [each[name] * statistics.median(row) for row in rows] for name, rows in seconds.items()}
    weights = {name: size / made[name].form.size for name, size in sizes.items()}
    base = next(iter(made))
    print(
        f"{form.size} parameters, sums of {form.width} bits, {args.runs} runs; microseconds of processor time a parameter"
    )
    print(f"{'scheme':26} {'bytes':>7} {'ratio':>7} {'encrypt':>9} {'ratio':>7} {'add':>7} {'decrypt':>9}")
    for name, (once, add, opened) in medians.items():
        print(
            f"{name:26} {weights[name]:7.2f} {weights[base] / weights[name]:6.1f}x {once:9.3f}"
            f" {medians[base][0] / once:6.2f}x {add:7.3f} {opened:9.3f}"
        )


if __name__ == "__main__":
    main()
