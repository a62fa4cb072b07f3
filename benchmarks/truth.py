"""Truth discovery: fits of a table by Atoll next to crowd-kit, on sets of real crowds and on made ones.

    ATOLL_DATA=FOLDER python benchmarks/truth.py            # six sets, D&S and GLAD, then the comparison of results
    python benchmarks/truth.py --made                       # without data: three made tables

crowd-kit has an environment of its own (`benchmarks/peers/crowdkit.txt`). Each side fits the same DataFrame in one process, and the table gives the processor seconds of the best run, since on a busy machine these say more than the clock.
Reading files and loading libraries do not count. Results must agree: Dawid-Skene and one coin to 1e-6 after as many iterations, with the same index; GLAD and MACE by accuracy, within three tasks in a hundred. Results go to `benchmarks/results/truth.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from atoll.data.folder import locate
from atoll.truth import GLAD, MACE, DawidSkene, OneCoin, read_truth

from envs import HERE, ensure

SETS = ("bluebirds", "dog", "weather_sentiment", "snow_rte", "snow_temp", "ducks")
OURS = {
    "dawid-skene": lambda: DawidSkene(),
    "dawid-skene, 5 iterations": lambda: DawidSkene(iterations=5, tolerance=0),
    "one coin, 5 iterations": lambda: OneCoin(iterations=5, tolerance=0, delta=1e-10),
    "glad": lambda: GLAD(),
    "mace": lambda: MACE(),
}
LEAST = {"dawid-skene": 3.0, "glad": 20.0}
"""Least ratio of processor seconds, over all sets together."""
GLAD_SETS = ("bluebirds", "weather_sentiment", "snow_rte", "ducks")


def write_made(folder: Path) -> dict[str, tuple[Path, dict[str, str]]]:
    """Tables of workers of unequal skill: name -> file and truth."""
    found = {}
    for name, tasks, workers, each, classes in (("made 2", 300, 40, 8, 2), ("made 4", 800, 100, 10, 4), ("made 12", 500, 60, 12, 12)):  # fmt: skip
        rng = np.random.default_rng(tasks)
        truth, skill = rng.integers(classes, size=tasks), rng.uniform(0.35, 0.95, workers)
        rows = []
        for t in range(tasks):
            for w in rng.choice(workers, each, replace=False):
                said = truth[t] if rng.random() < skill[w] else rng.integers(classes)
                rows.append(f"t{t},w{w},c{said}\n")
        path = folder / f"{name}.csv"
        path.write_text("task,worker,label\n" + "".join(rows))
        found[name] = path, {f"t{t}": f"c{c}" for t, c in enumerate(truth.tolist())}
    return found


def fit_ours(path: Path, word: str, runs: int) -> dict[str, Any]:
    """What the peer prints, of Atoll."""
    table = pd.read_csv(path, dtype=str).drop_duplicates(["task", "worker"])
    seconds, processor = [], []
    for _ in range(runs):
        model = OURS[word]()
        begin, busy = time.perf_counter(), time.process_time()
        labels = model.fit_predict(table)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - busy)
    return {"seconds": seconds, "processor": processor, "index": labels.index.tolist(), "labels": labels.to_dict(), "probas": model.probas_.T.to_dict(), "iterations": model.n_iter_}  # fmt: skip


def fit_peer(path: Path, word: str, runs: int) -> dict[str, Any]:
    """Run the peer's process, with one thread."""
    command = [str(ensure("crowdkit")), str(HERE / "peers" / "crowdkit_bench.py"), str(path), word, str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def compare(word: str, ours: dict[str, Any], peer: dict[str, Any], truth: dict[str, str]) -> str:
    """How results agree; raises if they do not."""
    if "iterations" in word:
        assert ours["index"] == peer["index"]
        off = max(abs(row[label] - peer["probas"][task][label]) for task, row in ours["probas"].items() for label in row)  # fmt: skip
        assert off < 1e-6, (word, off)
        return f"{off:.0e}"
    right = [np.mean([one["labels"][task] == label for task, label in truth.items()]) for one in (ours, peer)]
    if word != "dawid-skene":
        assert abs(right[0] - right[1]) <= 0.03, (word, right)
    return f"{100 * right[0]:.1f} / {100 * right[1]:.1f} %"


def main() -> None:
    """Measure, compare, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--made", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        made = write_made(Path(place))
        sets = made if asked.made else {name: (locate(None, "crowd_truth", f"{name}_labels.csv.gz"), read_truth(locate(None, "crowd_truth", f"{name}_truth.csv.gz"))) for name in SETS}  # fmt: skip
        works = [(word, name) for word in LEAST for name in sets if word != "glad" or asked.made or name in GLAD_SETS]
        works += [(word, "made 2") for word in OURS if word not in LEAST]
        sets = {**made, **sets}
        for word, name in works:
            path, truth = sets[name]
            runs = 1 if word == "glad" else asked.runs
            ours, peer = fit_ours(path, word, asked.runs), fit_peer(path, word, runs)
            ratio = min(peer["processor"]) / min(ours["processor"])
            rows.append({"model": word, "set": name, "ours": min(ours["processor"]), "crowd-kit": min(peer["processor"]), "ratio": ratio, "results": compare(word, ours, peer, truth)})  # fmt: skip
            print(rows[-1], flush=True)
    whole = {word: _ratio([row for row in rows if row["model"] == word]) for word in LEAST}
    lines = ["| model | set | Atoll, ms | crowd-kit, ms | ratio | results, ours / crowd-kit, or largest difference |", "| --- | --- | --: | --: | --: | --- |"]  # fmt: skip
    lines += [f"| {row['model']} | {row['set']} | {1000 * row['ours']:.0f} | {1000 * row['crowd-kit']:.0f} | {row['ratio']:.1f} | {row['results']} |" for row in rows]  # fmt: skip
    lines += ["", *(f"{word}: {ratio:.1f} times crowd-kit over all sets; at least {LEAST[word]:g} is wanted" for word, ratio in whole.items())]  # fmt: skip
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "truth.md").write_text("\n".join(lines) + "\n")
    machine = {"processors": os.cpu_count(), "python": platform.python_version()}
    (HERE / "results" / "truth.json").write_text(json.dumps({"machine": machine, "whole": whole, "rows": rows}, indent=2) + "\n")  # fmt: skip
    print("\n".join(lines))
    assert all(whole[word] >= least for word, least in LEAST.items())


def _ratio(rows: list[dict[str, Any]]) -> float:
    return sum(row["crowd-kit"] for row in rows) / sum(row["ours"] for row in rows)


if __name__ == "__main__":
    main()
