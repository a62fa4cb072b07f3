"""The survey's sentences about federated self-supervision, on digits without labels.

The survey (its section on self-supervised learning without labels) has words and no numbers. We judge its words by probes on what each method learned. One data set,
one encoder, untuned settings and two seeds: a difference below two standard errors of the seeds' differences, or below a point, decides nothing.

A run is one method on one division of scikit-learn's digits. Settings are alike for all methods and were not tuned: 5 clients, an encoder of two convolutions, SGD with momentum .9, as many rows in all local steps. A probe
(logistic regression on standardised features) is fitted on 10 labelled rows of each class and measured on the test rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atoll.reproduce import Claim, Entry, Lab

__all__ = ["BASES", "ENTRY", "SelfRun", "judged_runs"]


# ------------------------------------------------------------------ runs

_FEATURES, _LABELS = 64, 10
_FEW = 10
"""Labelled rows of each class for the probe."""


@dataclass(frozen=True)
class SelfRun:
    """One training.

    Attributes:
        method: name of a class of `atoll.labels`, ``"supervised"``, ``"untrained"``, or ``"FedX"``, which goes around `FedSimCLR`.
        skewed: two shards of rows sorted by class a client, or rows at random.
        batch: rows of a mini-batch; steps are fewer with larger ones.
        once: 20 clients of which none returns, in place of 5 that do.
        settings: of the method.
    """

    method: str
    skewed: bool = True
    batch: int = 64
    once: bool = False
    settings: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def key(self) -> str:
        """Its name in the file of kept results."""
        said = "".join(f" {name}={value}" for name, value in self.settings)
        return f"{self.method}{said} {'skewed' if self.skewed else 'iid'} {self.batch}{' once' if self.once else ''}"

    def accuracy(self, seed: int, rounds: int) -> float:
        """Train, and return the accuracy of the probe, or of the model itself if it was trained on labels."""
        import atoll
        from atoll.selection import Once

        train, test = atoll.data.digits().with_test(None).split(0.3, seed=0)
        train, test = _pictures(train), _pictures(test)
        parties = 4 * rounds if self.once else 5
        islands = (
            atoll.data.shards(train, parties=parties, per_client=2, seed=seed)
            if self.skewed
            else atoll.data.iid(train, parties=parties, seed=seed)
        )
        if self.method == "untrained":
            return _probed(_network(self.method, seed), train, test, seed)
        job = atoll.Training(
            model=_network(self.method, seed),
            algorithm=self._algorithm(),
            selection=Once(4, seed=seed) if self.once else atoll.Everyone(),
            rounds=rounds,
            compile="never",
        )
        model = atoll.simulate(job, islands, seed=seed, engine="inline", progress=False).model.eval()
        if self.method != "supervised":
            return _probed(model, train, test, seed)
        return float((_outputs(model, test).argmax(1) == test.y).mean())

    def _algorithm(self) -> Any:
        import atoll
        from atoll import labels
        from atoll.algorithms import Accelerated
        from atoll.learn.transforms import Momentum

        steps = atoll.FedAvg(lr=0.05, steps=320 // self.batch, batch_size=self.batch)
        base = Accelerated(steps, transforms=(Momentum(0.9),))
        given: dict[str, Any] = {"base": base, "view": _view(), "gauge": 0.0, **dict(self.settings)}
        if self.method in ("FedSimCLR", "FedX"):
            given = {"temperature": 0.5, **given}
        if self.method == "supervised":
            return labels.Supervised(base=base, view=_view())
        if self.method == "FedX":
            return labels.FedX(base=labels.FedSimCLR(**given))
        return getattr(labels, self.method)(**given)


def _view() -> Any:
    """Return what makes views of digits of 8 by 8 pixels."""
    from atoll.views import Affine, ColourJitter, Compose, Cutout

    return Compose([Affine(), ColourJitter((0.3, 1.3), (1.0, 1.0)), Cutout(0.35)])


def _pictures(rows: Any) -> Any:
    x = np.asarray(rows.x, np.float32).reshape(-1, 1, 8, 8)
    return rows.with_test(None).with_columns({"x": x / x.max()})


def _network(method: str, seed: int) -> Any:
    """Return an encoder with heads, or with an output for each class."""
    from torch import nn

    from atoll.labels import Siamese
    from atoll.torch import seeded

    def make() -> nn.Module:
        encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, _FEATURES), nn.ReLU(),
        )  # fmt: skip
        if method == "supervised":
            return nn.Sequential(encoder, nn.Linear(_FEATURES, _LABELS))
        return Siamese(encoder, _FEATURES, width=32, hidden=64, turns=True)

    made = seeded(make, seed)
    return made.eval() if method == "untrained" else made


def _outputs(model: Any, rows: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(np.array(rows.x, np.float32))).numpy()


def _probed(model: Any, train: Any, test: Any, seed: int) -> float:
    from atoll.labels.evaluators import fit_probe

    draws = np.random.default_rng(seed)
    few = np.concatenate([draws.permutation(np.flatnonzero(train.y == c))[:_FEW] for c in range(_LABELS)])
    probe = fit_probe(_outputs(model, train.take(few)), train.y[few], classes=_LABELS, l2=10.0)
    return probe.accuracy(_outputs(model, test), test.y)


BASES = ("FedSimCLR", "FedMoCo", "FedSimSiam", "FedBYOL")


def judged_runs(quick: bool) -> list[SelfRun]:
    """Return the runs that the claims compare; fewer if it must be quick."""
    orchestra = (("clusters", 16), ("sent", 4), ("memory", 16), ("server_steps", 100))
    made = [SelfRun(method) for method in (*BASES, "FedU", "FedEMA", "FedX", "supervised", "untrained")]
    made += [SelfRun(method, skewed=False) for method in ("FedSimCLR", "supervised")]
    made += [SelfRun("Orchestra", skewed=False, batch=16, once=True, settings=orchestra)]
    if quick:
        return made
    made += [SelfRun("FedBYOL", skewed=False), SelfRun("FedSimSiam", skewed=False)]
    return [*made, SelfRun("SSFL", batch=16), SelfRun("SSFL", batch=64)]


# ------------------------------------------------------------------ verdicts

Scores = dict[str, list[float]]
_POINT = 0.01


def _run(lab: Lab, quick: bool) -> list[Claim]:
    seeds, rounds = ((0,), 3) if quick else ((0, 1), 8)
    found: Scores = {}
    for run in judged_runs(quick):
        values = [_kept(lab, run, seed, rounds) for seed in seeds]
        found[run.key] = [value for value in values if value is not None]
    return [*_shown(judged_runs(quick), found), *_judged(found)]


def _kept(lab: Lab, run: SelfRun, seed: int, rounds: int) -> float | None:
    """Return the accuracy of a run, read back if it was done before; ``None`` if it was not and nothing may be trained."""
    file = lab.folder / "accuracies.json"
    known: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not lab.fresh else {}
    key = f"{run.key}, seed {seed}, {rounds} rounds"
    if key not in known and not lab.kept:
        began = time.perf_counter()
        known[key] = run.accuracy(seed, rounds)
        lab.seconds += time.perf_counter() - began
        _write(file, known)
    return known.get(key)


def _write(file: Path, known: dict[str, float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")


def _text(values: list[float]) -> str | None:
    return (
        None
        if not values
        else f"{np.mean(values):.3f}" + ("" if len(values) < 2 else f" ({min(values):.3f} to {max(values):.3f})")
    )


def _shown(runs: list[SelfRun], found: Scores) -> list[Claim]:
    """Show accuracies; there is nothing to judge."""
    return [Claim.figure(run.key, _text(found[run.key]), part="Accuracy of a probe with 100 labels") for run in runs]


def _compared(claim: str, found: Scores, better: list[str], worse: list[str], note: str = "") -> Claim:
    """Judge that the sum of some scores exceeds that of others: with seeds, by two standard errors of the paired differences and one point."""
    sides = [[found.get(key, []) for key in keys] for keys in (better, worse)]
    sizes = {len(values) for side in sides for values in side}
    if sizes != {max(sizes)} or max(sizes) == 0:
        return Claim(claim, None, None, None, note, part="The survey's sentences")
    high, low = (np.sum(side, axis=0) for side in sides)
    gaps = high - low
    error = 2 * gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.inf
    holds = None if abs(gaps.mean()) < max(error, _POINT) else bool(gaps.mean() > 0)
    return Claim(
        claim,
        None,
        f"{gaps.mean():+.3f}",
        holds,
        note or "difference of mean accuracies",
        part="The survey's sentences",
    )


def _judged(found: Scores) -> list[Claim]:
    """Judge the survey's sentences."""
    skewed = {method: SelfRun(method).key for method in (*BASES, "FedU", "FedEMA", "FedX", "supervised", "untrained")}
    iid = {method: SelfRun(method, skewed=False).key for method in ("FedSimCLR", "supervised")}
    claims = [
        _compared(
            f"{method} learns: its features beat those of the untrained encoder",
            found,
            [skewed[method]],
            [skewed["untrained"]],
        )
        for method in (*BASES, "FedU", "FedEMA", "FedX")
    ]
    claims.append(
        _compared(
            "skew hurts self-supervised learning more than supervised learning",
            found,
            [iid["FedSimCLR"], skewed["supervised"]],
            [skewed["FedSimCLR"], iid["supervised"]],
            "loss of FedSimCLR's probe from iid rows to two classes a client, less the same loss of supervised accuracy",
        )
    )
    claims += [
        _compared(f"BYOL is the best base: it beats {other}", found, [skewed["FedBYOL"]], [skewed[other]])
        for other in BASES
        if other != "FedBYOL"
    ]
    claims += [
        _compared(
            "FedEMA is at least FedU",
            found,
            [skewed["FedEMA"]],
            [skewed["FedU"]],
            "it holds only if FedEMA is better, and fails only if it is worse",
        ),
        _compared("FedX adds to FedSimCLR", found, [skewed["FedX"]], [skewed["FedSimCLR"]]),
        _compared(
            "small mini-batches hurt SSFL",
            found,
            [SelfRun("SSFL", batch=64).key],
            [SelfRun("SSFL", batch=16).key],
            "64 against 16 rows, as many rows in all; the averaged network",
        ),
    ]
    orchestra = next(run.key for run in judged_runs(True) if run.once)
    claims.append(
        _compared(
            "Orchestra learns from clients that never return",
            found,
            [orchestra],
            [skewed["untrained"]],
            "every client takes part once, with 16 rows or more; FedU, FedEMA, SSFL and FedMoCo are refused there",
        )
    )
    return claims


ENTRY = Entry(
    name="labels-self",
    title="Self-supervised learning at clients: the survey's sentences, on digits without labels",
    source="Survey of federated learning, part on learning without full labels, section on self-supervision; FedU, FedEMA, FedX, Orchestra",
    run=_run,
)
