"""Measures boosted trees over two parties' columns under Paillier encryption, by matrix products, and from labels with noise: processor seconds of both parties, and bytes between them.

    ATOLL_DATA=folder python benchmarks/vertical.py                  # 20 trees of depth 3 on `default_credit`, keys of 2,048 bits
    ATOLL_DATA=folder python benchmarks/vertical.py --trees 2        # a tree costs the same, whichever it is
    python benchmarks/vertical.py --rows 2000                        # a drawn table instead

Each line is measured in a process of its own, in which both parties are, so their processor times add up. Processor time changes little with other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

CASES = {
    "paillier": ("SecureBoost", {}),
    "paillier, short exponents": ("SecureBoost", {"short_exponents": True}),
    "none": ("SecureBoost", {"security": "none"}),
    "product": ("FedXGBoost", {}),
    "noise, epsilon 8": ("FedXGBoost", {"security": "noise", "epsilon": 8.0}),
    "noise, epsilon 2": ("FedXGBoost", {"security": "noise", "epsilon": 2.0}),
    "noise, epsilon 0.5": ("FedXGBoost", {"security": "noise", "epsilon": 0.5}),
}
"""Name -> class in `atoll.vertical`, and its settings."""


def draw_parties(rows: int):
    """Ten columns at each of two parties."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 20))
    y = (x[:, 0] + x[:, 10] * x[:, 1] + rng.normal(size=rows) > 0).astype(int)
    ids = np.array([f"customer-{i}" for i in range(rows)])
    bank = {f"a{j}": x[:, j] for j in range(10)}
    shop = {f"b{j}": x[:, 10 + j] for j in range(10)}
    return {"bank": {"id": ids, "y": y, **bank}, "shop": {"id": ids, **shop}}


def measure(case: str, trees: int, rows: int) -> dict[str, float]:
    """One training of two parties in this process."""
    import atoll
    from atoll import vertical

    parties = (
        draw_parties(rows)
        if rows
        else dict(zip(("bank", "shop"), atoll.data.fate_vertical("default_credit"), strict=True))
    )
    kind, settings = CASES[case]
    job = vertical.Vertical(model=getattr(vertical, kind)(trees=trees, **settings))
    began, wall = time.process_time(), time.perf_counter()
    result = atoll.simulate(job, parties, engine="inline", progress=False)
    spent = {"processor": time.process_time() - began, "wall": time.perf_counter() - wall}
    return {**spent, "bytes": result.cost["bytes"], "rows": result.rows["train"], **result.scores}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trees", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="draw a table of so many rows")
    parser.add_argument("--cases", default=";".join(CASES), help="of: " + "; ".join(CASES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.trees, args.rows)))
        return
    print(f"{'security':28}{'rows':>8}{'processor s':>13}{'wall s':>9}{'MB':>8}{'AUC':>8}")
    for case in args.cases.split(";"):
        words = [sys.executable, __file__, "--one", case.strip(), "--trees", str(args.trees), "--rows", str(args.rows)]
        told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        auc = told["test/federated/auc"]
        print(f"{case.strip():28}{told['rows']:>8,}{told['processor']:>13.1f}{told['wall']:>9.1f}{told['bytes'] / 1e6:>8.0f}{auc:>8.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
