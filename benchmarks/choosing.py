"""Does a choice without labels find the better setting? Ranks by entropy, information and agreement, against accuracy that nobody sees.

    python benchmarks/choosing.py                # 3 seeds, some minutes on one core
    python benchmarks/choosing.py --seeds 1 --rounds 10

Candidates are labelled rows alone with three views, and FixMatch and FreeMatch with several thresholds and rates, on scikit-learn's digits: 8 clients, 40 labels
spread over them. Each candidate is judged on the clients' rows without labels: by how sure it is (entropy), how sure of different classes (information), and
whether it says the same of a weak and a strong view (agreement). The table gives Spearman's rank correlation with the accuracy on held-out rows, and what is
lost by taking the first of the ranking in place of the best.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import atoll
import numpy as np
import torch
from atoll.labels import FixMatch, FreeMatch, Supervised
from atoll.labels import evaluators as E
from atoll.views import Affine, Compose, Cutout, Translate, row_keys
from torch import nn

WEAK = Translate(1)
STRONG = Compose([Affine(20, 0.1, 0.15, 0.2), Cutout(3)])


def net() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def candidates() -> dict[str, Any]:
    """Return the settings to choose from."""
    work: dict[str, Any] = {"steps": 10, "batch_size": 32}
    made: dict[str, Any] = {
        f"labels alone, {name} view": Supervised(view=view, lr=0.05, **work)
        for name, view in (("no", None), ("weak", WEAK), ("strong", STRONG))
    }
    for rate in (0.01, 0.05):
        for tau in (0.5, 0.8, 0.95):
            made[f"FixMatch tau={tau} lr={rate}"] = FixMatch(tau=tau, lr=rate, weak=WEAK, strong=STRONG, **work)
        made[f"FreeMatch lr={rate}"] = FreeMatch(lr=rate, weak=WEAK, strong=STRONG, **work)
    made["FixMatch tau=0.3 lr=0.2"] = FixMatch(tau=0.3, lr=0.2, weak=WEAK, strong=STRONG, **work)
    return made


def judged(params: Any, unlabelled: Any, test: Any) -> dict[str, float]:
    """Return all measures of a model."""
    model = net()
    model.load_state_dict({name: torch.as_tensor(np.asarray(value)) for name, value in params.items()})
    x, keys = torch.tensor(unlabelled.x), row_keys(torch.tensor([3, 4]), torch.arange(len(unlabelled)))
    with torch.no_grad():
        near, far, seen = (model(rows).numpy() for rows in (WEAK(x, keys), STRONG(x, keys), torch.tensor(test.x)))
    return {
        "entropy": -E.mean_entropy(near),
        "information": E.information(near),
        "agreement": E.agreement(near, far),
        "accuracy": float((seen.argmax(1) == test.y).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    correlations: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        whole, test = atoll.data.digits(flat=False, test=0.0).split(0.25, seed=seed)
        islands = atoll.data.unlabel(atoll.data.dirichlet(whole, parties=8, alpha=1.0, seed=seed), keep=40, seed=seed)
        pooled = islands.pooled()
        unlabelled = pooled.take(np.flatnonzero(~pooled["labelled"]))
        found = {}
        for name, method in candidates().items():
            job = atoll.Training(
                model=net, algorithm=method, rounds=options.rounds, evaluation=atoll.Evaluation(server=False)
            )
            result = atoll.simulate(job, islands, seed=seed, progress=False)
            found[name] = judged(result.params, unlabelled, test)
            row = "  ".join(f"{key} {value:.3f}" for key, value in found[name].items())
            print(f"seed {seed}: {name}: {row}", flush=True)
        truth = [one["accuracy"] for one in found.values()]
        for rule in ("entropy", "information", "agreement"):
            values = [one[rule] for one in found.values()]
            correlation, lost = E.rank_correlation(values, truth), max(truth) - truth[int(np.argmax(values))]
            correlations.setdefault(rule, []).append(correlation)
            print(f"seed {seed}: {rule}: rank correlation {correlation:.2f}, lost by the choice {lost:.3f}", flush=True)
    for rule, values in correlations.items():
        print(f"{rule}: median rank correlation {np.median(values):.2f} over {len(values)} seeds")


if __name__ == "__main__":
    main()
