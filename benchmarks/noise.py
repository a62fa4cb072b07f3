"""Draws of discrete noise a second on one core, keystream included, next to floating-point noise of NumPy.

    python benchmarks/noise.py [--draws 4000000] [--runs 5]

The target is 5 million draws a second on one core for every law and variance.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time

import numpy as np
from atoll.privacy.discrete import DiscreteGaussianLaw, DiscreteLaplaceLaw, DiscreteSampler, PoissonLaw, SkellamLaw
from atoll.secure.keystream import Keystream

LAWS = (
    *(DiscreteGaussianLaw(v) for v in (1.0, 100.0, 1e4, 1e6, 2.0**26)),
    *(SkellamLaw(v) for v in (1.0, 100.0, 1e4, 1e6, 2.0**26)),
    DiscreteLaplaceLaw(10.0),
    PoissonLaw(1000.0),
)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--draws", type=int, default=4_000_000)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    samplers, table = {}, {}
    for law in LAWS:
        began = time.perf_counter()
        samplers[law] = DiscreteSampler(law)
        table[law] = time.perf_counter() - began
    seconds = {law: [] for law in [*LAWS, "Philox normal"]}
    for run in range(given.runs):
        for law, sampler in samplers.items():
            source = Keystream(hashlib.sha256(f"{law} {run}".encode()).digest())
            began = time.perf_counter()
            sampler.draw(source, given.draws)
            seconds[law].append(time.perf_counter() - began)
        generator = np.random.Generator(np.random.Philox(run))
        began = time.perf_counter()
        generator.standard_normal(given.draws)
        seconds["Philox normal"].append(time.perf_counter() - began)
    for law, found in seconds.items():
        rate = given.draws / statistics.median(found) / 1e6
        made = f", table of {len(samplers[law].high) + 1} values in {table[law]:.3f} s" if law in table else ""
        print(f"{law}: {rate:.1f} million draws/s (median of {given.runs}){made}")


if __name__ == "__main__":
    main()
