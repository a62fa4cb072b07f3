"""Measures what encrypting a parameter costs: bytes on the wire and microseconds at the client, the server and the key holder.

    python benchmarks/encryption.py
    python benchmarks/encryption.py --parameters 200000 --runs 9

The first line is CKKS with NVFlare's defaults, called as NVFlare calls TenSEAL; the others are the schemes of `atoll.secure.encrypted`. They take turns, so that
a busy period does not hit one alone. Times are processor time, the median of the runs; ratios are to NVFlare's defaults in the same run. Numbers have 14 bits
at each of 100 parties, so that sums have 21. `atoll reproduce flare-he` measures the same and judges it.
"""

from __future__ import annotations

import argparse

from atoll_papers.flare.encryption import BASE, BITS, PARTIES, measure, schemes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    costs = measure(args.parameters, args.runs, schemes())
    base = costs[BASE]
    print(
        f"{args.parameters} parameters of {BITS} bits at {PARTIES} parties, {args.runs} runs; microseconds of processor time a parameter"
    )
    print(f"{'scheme':26} {'bytes':>7} {'ratio':>7} {'encrypt':>9} {'ratio':>7} {'add':>7} {'decrypt':>9}")
    for name, cost in costs.items():
        print(
            f"{name:26} {cost.bytes:7.2f} {base.bytes / cost.bytes:6.1f}x {cost.encrypt:9.3f} {base.encrypt / cost.encrypt:6.2f}x"
            f" {cost.add:7.3f} {cost.decrypt:9.3f}"
        )


if __name__ == "__main__":
    main()
