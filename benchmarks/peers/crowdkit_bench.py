"""crowd-kit in its own environment: fits of tables, and what they find. `benchmarks/truth.py` runs it and reads its line."""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import pandas as pd
from crowdkit.aggregation import GLAD, MACE, DawidSkene, OneCoinDawidSkene

warnings.simplefilter("ignore")
MODELS: dict[str, Any] = {
    "dawid-skene": lambda: DawidSkene(n_iter=100),
    "dawid-skene, 5 iterations": lambda: DawidSkene(n_iter=5, tol=-1e9),
    "one coin, 5 iterations": lambda: OneCoinDawidSkene(n_iter=5, tol=-1e9),
    "glad": lambda: GLAD(n_iter=20),
    "mace": lambda: MACE(n_restarts=1),
}


def main(path: str, word: str, runs: int) -> None:
    """Fit one model to a CSV of words several times; print seconds, labels and probabilities as JSON."""
    table = pd.read_csv(path, dtype=str).drop_duplicates(["task", "worker"])
    seconds, processor = [], []
    for _ in range(runs):
        model = MODELS[word]()
        begin, busy = time.perf_counter(), time.process_time()
        labels = model.fit_predict(table)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - busy)
    probas = {task: row.to_dict() for task, row in model.probas_.iterrows()}
    print(json.dumps({"seconds": seconds, "processor": processor, "index": labels.index.tolist(), "labels": labels.to_dict(), "probas": probas}))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
