"""Runs of `labels-self`: one method on one division of scikit-learn's digits, and what a probe makes of its features.

Settings are alike for all methods and were not tuned: 5 clients, an encoder of two convolutions, SGD with momentum .9, as many rows in all local steps. A probe
(logistic regression on standardised features) is fitted on 10 labelled rows of each class and measured on the test rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BASES", "SelfRun", "judged_runs"]

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
        from atoll.learn.selection import Once

        train, test = atoll.data.digits().with_columns({}).split(0.3, seed=0)
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
        from atoll.learn.algorithms import Accelerated
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
    from atoll.labels.views import Affine, ColourJitter, Compose, Cutout

    return Compose([Affine(), ColourJitter((0.3, 1.3), (1.0, 1.0)), Cutout(0.35)])


def _pictures(rows: Any) -> Any:
    x = np.asarray(rows.x, np.float32).reshape(-1, 1, 8, 8)
    return rows.with_columns({"x": x / x.max()})


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
