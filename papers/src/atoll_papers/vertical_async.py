"""VAFL: hosts that do not wait for each other, against a split network that waits for the slowest.

Source: the thesis on efficient federated learning lists VAFL (Chen, Jin, Sun, Yin 2020, "VAFL: a method of vertical asynchronous federated learning") among the methods for columns that lie apart, and
prints no numbers of it. What that paper says can be checked: the asynchronous method gets further than the synchronous one in the same time where hosts differ in speed, and perturbed embeddings cost
the more, the larger their noise. Time is that of the virtual clock: a step of the synchronous network takes as long as the slowest host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.vertical import VAFL, SplitNet, Vertical

__all__ = ["ENTRY"]

_TIME, _NOISE = "The same virtual time", "Perturbed embeddings"
_SLOW = "shop-3"


def _parties(rows: int, seed: int) -> dict[str, dict[str, Any]]:
    """A bank with labels and three shops, of which the label needs all."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 12))
    signal = x[:, 0] + x[:, 3] * x[:, 4] + x[:, 6] * x[:, 1] + x[:, 9] + 0.5 * rng.normal(size=rows)
    made = {}
    for k, name in enumerate(("bank", "shop-1", "shop-2", _SLOW)):
        made[name] = {"id": np.arange(rows), **{f"{name}-{j}": x[:, 3 * k + j] for j in range(3)}}
    made["bank"]["y"] = (signal > 0).astype(np.int64)
    return made


def _train(model: Any, parties: dict[str, Any]) -> Any:
    job = Vertical(model=model)
    return atoll.simulate(job, parties, engine="inline", progress=False, secret_seed=1).outcome


def _auc(models: list[Any], several: list[dict[str, Any]]) -> list[float]:
    return [_train(model, parties).scores["test/federated/auc"] for model, parties in zip(models, several, strict=True)]


@keeping_nothing("vertical-async")
def _run(quick: bool) -> list[Claim]:
    rows, seeds = (500, 1) if quick else (1200, 3)
    several = [_parties(rows, seed) for seed in range(seeds)]
    return [*_same_time(several, rows, quick), *_perturbed(several, rows, quick)]


def _same_time(several: list[dict[str, Any]], rows: int, quick: bool) -> list[Claim]:
    where = f"{rows:,} drawn rows, 3 columns at each of 4 parties, means of {len(several)} seed{'s' * (len(several) > 1)}; AUC of held-out rows"
    settings: dict[str, Any] = {"rate": 0.01}
    one, other = (
        _train(model, several[0]).predictions["federated"]
        for model in (SplitNet(epochs=2, **settings), VAFL(epochs=2, **settings))
    )
    same = np.array_equal(one, other)
    made = [
        Claim(
            "without delay VAFL is the synchronous network",
            "equal",
            "equal" if same else "different",
            same,
            f"predictions of all rows, to the bit; {where}",
            _TIME,
        )
    ]
    passes = 8 if quick else 16
    for slower in (8,) if quick else (2, 4, 8):
        wait = _auc([SplitNet(epochs=passes // slower, seed=seed, **settings) for seed in range(len(several))], several)
        go_on = _auc(
            [VAFL(epochs=passes, pace={_SLOW: float(slower)}, seed=seed, **settings) for seed in range(len(several))],
            several,
        )
        gain = float(np.mean(go_on)) - float(np.mean(wait))
        made.append(
            Claim(
                f"one host {slower} times slower: VAFL gets further",
                f"more than {np.mean(wait):.4f}",
                round(float(np.mean(go_on)), 4),
                gain > 0,
                f"{passes} passes of the fast hosts, in which the synchronous network makes {passes // slower}; {where}",
                _TIME,
            )
        )
    return made


def _perturbed(several: list[dict[str, Any]], rows: int, quick: bool) -> list[Claim]:
    where = f"{rows:,} drawn rows, one host 4 times slower, {len(several)} seed{'s' * (len(several) > 1)}; embeddings clipped to a norm of 4; AUC of held-out rows, with noise in the answers too"
    found: dict[float, float] = {}
    for noise in (0.0, 1.0) if quick else (0.0, 0.1, 0.3, 1.0):
        models = [
            VAFL(epochs=8 if quick else 16, rate=0.01, pace={_SLOW: 4.0}, noise=noise, clip=4.0, seed=seed)
            for seed in range(len(several))
        ]
        found[noise] = round(float(np.mean(_auc(models, several))), 4)
    shown = ", ".join(f"{noise:g}: {value:.4f}" for noise, value in found.items())
    none, most = found[min(found)], found[max(found)]
    return [
        *(Claim.figure(f"noise of {noise:g} times the norm", value, where, _NOISE) for noise, value in found.items()),
        Claim(
            "noise as large as the embeddings costs accuracy",
            f"below {none:.4f}",
            most,
            most < none,
            f"{shown}; {where}",
            _NOISE,
        ),
    ]


ENTRY = Entry(
    name="vertical-async",
    title="VAFL: asynchronous training over columns at several parties",
    source="the thesis on efficient federated learning, vertical federated learning: VAFL (Chen et al. 2020)",
    run=_run,
)
