"""How much of the truth survives noise: the table of the page "who learns what of reports".

``python benchmarks/truth_noise.py`` prints it. A crowd is drawn: tasks of two classes, and workers who are right with a probability between 0.55 and 0.95. Each worker reports on all tasks, and is a party.
"""

from __future__ import annotations

import argparse
import math

import atoll
import numpy as np
from atoll.truth import DawidSkene, Logistic, MajorityVote, OneCoin, Shamir, TruthModel, Virtual, score_labels

TASKS = 30
MODELS: dict[str, TruthModel] = {
    "vote": MajorityVote(),
    "Logistic, 2 iterations": Logistic(iterations=2),
    "OneCoin, 2 iterations": OneCoin(iterations=2),
    "D&S, 2 iterations": DawidSkene(iterations=2),
}


def draw_crowd(workers: int, seed: int) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    """Draw reports, and the truth."""
    rng = np.random.default_rng(seed)
    truth, skill = rng.integers(0, 2, TASKS), rng.uniform(0.55, 0.95, workers)
    right = rng.random((workers, TASKS)) < skill[:, None]
    said = np.where(right, truth, 1 - truth)
    rows = [(f"t{t:02}", f"w{w}", str(said[w, t])) for w in range(workers) for t in range(TASKS)]
    return rows, {f"t{t:02}": str(truth[t]) for t in range(TASKS)}


def measure_accuracy(model: TruthModel, workers: int, epsilon: float | None, seeds: int) -> float:
    """The mean accuracy over crowds."""
    found = []
    for seed in range(seeds):
        rows, truth = draw_crowd(workers, seed)
        noise = {} if epsilon is None else {"epsilon": epsilon, "clip": math.sqrt(TASKS)}
        job = atoll.Truth(model=model, protocol=Virtual(of=Shamir(committee=5)), tasks=sorted(truth), classes=["0", "1"], label="", **noise)  # fmt: skip
        parts = atoll.truth.split_by_worker(rows)
        result = atoll.simulate(job, parts, engine="inline", progress=False, seed=seed, secret_seed=seed)
        found.append(score_labels(result.fit.by_task(), truth))
    return float(np.mean(found))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[50, 200])
    asked = parser.parse_args()
    levels: list[float | None] = [1.0, 2.0, 4.0, 8.0, None]
    names = ["exact" if level is None else f"epsilon {level:g}" for level in levels]
    print(f"| workers | model | {' | '.join(names)} |\n| --: | --- |{' --: |' * len(names)}")
    for workers in asked.workers:
        for name, model in MODELS.items():
            cells = [f"{measure_accuracy(model, workers, level, asked.seeds):.3f}" for level in levels]
            print(f"| {workers} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
