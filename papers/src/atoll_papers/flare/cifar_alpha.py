"""NVIDIA FLARE, Fig. 4: FedAvg on CIFAR-10 by heterogeneity, and four methods where it is strongest. Scaled down.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on federated deep learning: CIFAR-10 divided by Dirichlet(alpha) as in FedMA, alpha in {1, 0.5, 0.3, 0.1}
(Fig. 4a), and FedAvg, FedProx, FedOpt and SCAFFOLD at alpha = 0.1 (Fig. 4b). The figure's values cannot be read; the text says that FedOpt and SCAFFOLD converge faster and end better than
FedAvg and FedProx at the same number of steps. Ours is smaller: 10,000 of the 50,000 images at 16 x 16 pixels, a CNN of 9,810 parameters, and fewer rounds. So our accuracies are not the
paper's; their order is judged.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from atoll.reproduce import Claim, Entry, Lab

__all__ = ["ENTRY"]


_TASKS = "atoll.reproduce.fedaq.tasks"
_ALPHAS = (1.0, 0.5, 0.3, 0.1)
_CLIENTS = 8
_RATE = 0.05
_METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "FedAvg"},
    "FedProx": {"name": "FedProx", "mu": 0.01},
    "FedOpt": {"name": "FedAvgM", "momentum": 0.6},
    "SCAFFOLD": {"name": "Scaffold"},
}
"""The methods with the settings of NVFlare's public example: mu of FedProx 1e-5 there, which does nothing; 0.01 is the smallest of its own paper's that does."""
_FIRST, _SECOND = "Fig. 4(a): heterogeneity", "Fig. 4(b): methods at alpha = 0.1"


def _settings(method: str, alpha: float, quick: bool) -> dict[str, Any]:
    """Return the configuration of one training."""
    source: dict[str, Any] = {"name": "digits"} if quick else {"name": f"{_TASKS}:small_cifar"}
    model: dict[str, Any] = (
        {"name": "linear", "features": 64, "outputs": 10} if quick else {"name": f"{_TASKS}:small_cnn"}
    )
    return {
        "name": f"alpha-{alpha}-{method}",
        "data": {"source": source, "partition": {"name": "dirichlet", "parties": _CLIENTS, "alpha": alpha, "seed": 1}},
        "model": model,
        "algorithm": {**_METHODS[method], "lr": _RATE, "epochs": 2, "batch_size": 64},
        "selection": "Everyone",
        "rounds": 4 if quick else 12,
        "seed": 0,
    }


def _area(run: Any) -> float:
    """Return the mean accuracy over the rounds: the higher, the faster a method is."""
    values = [row["test/accuracy"] for row in run.rows]
    return float(sum(values) / len(values))


def _run(lab: Lab, quick: bool) -> list[Claim]:
    alphas = (1.0, 0.1) if quick else _ALPHAS
    by_alpha = {alpha: lab.train(_settings("FedAvg", alpha, quick)) for alpha in alphas}
    methods = {name: lab.train(_settings(name, 0.1, quick)) for name in _METHODS}
    what = (
        "linear model on digits, 4 rounds"
        if quick
        else "10,000 images at 16 x 16, CNN of 9,810 parameters, 12 rounds of 2 epochs"
    )
    where = f"{what}, {_CLIENTS} clients, one seed"
    ends = [by_alpha[alpha].best() for alpha in alphas]
    shown = ", ".join(f"{end:.3f}" for end in ends)
    claims = [
        Claim("the more heterogeneous, the lower FedAvg's accuracy", f"alpha {', '.join(f'{a:g}' for a in alphas)}: falling", shown,
              all(a > b for a, b in pairwise(ends)), f"the best accuracy of each training; {where}", _FIRST),
        Claim("alpha = 0.1 is the worst by far", "below all others", f"{ends[-1]:.3f}", ends[-1] < min(ends[:-1]), where, _FIRST),
    ]  # fmt: skip
    for better in ("FedOpt", "SCAFFOLD"):
        for worse in ("FedAvg", "FedProx"):
            claims.append(_better(better, worse, methods, where))
            claims.append(_faster(better, worse, methods, where))
    return claims


def _better(better: str, worse: str, runs: dict[str, Any], where: str) -> Claim:
    a, b = runs[better].best(), runs[worse].best()
    return Claim(
        f"{better} ends better than {worse}",
        f"more than {b:.3f}",
        f"{a:.3f}",
        a > b,
        f"best accuracies; {where}",
        _SECOND,
    )


def _faster(better: str, worse: str, runs: dict[str, Any], where: str) -> Claim:
    a, b = _area(runs[better]), _area(runs[worse])
    note = f"mean accuracies over the rounds, which are higher the sooner a method learns; {where}"
    return Claim(f"{better} converges faster than {worse}", f"more than {b:.3f}", f"{a:.3f}", a > b, note, _SECOND)


ENTRY = Entry(
    name="flare-cifar-alpha",
    title="NVIDIA FLARE, Fig. 4: heterogeneity, and FedAvg, FedProx, FedOpt and SCAFFOLD, on a part of CIFAR-10",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), Fig. 4",
    run=_run,
    needs="the part of CIFAR-10 below ATOLL_DATA, and PyTorch",
    data=("cifar10_subset",),
    quick_data=(),
)
