"""The trainings that ``atoll labels adapt`` compares: networks, views and settings for each method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import Islands
    from atoll.learn.algorithm import Algorithm

__all__ = ["METHODS", "UNSEEN", "AdaptationRun", "AdaptationTerms", "runs_of"]

METHODS = ("SelfTraining", "FADE", "DANN", "EfficientFDA")
UNSEEN = ("FedSR",)
"""Methods that need no row of the target."""


@dataclass(frozen=True)
class AdaptationTerms:
    """How every training of a comparison runs.

    Attributes:
        rounds: of a training.
        lr: learning rate of the local steps; a cosine schedule goes over the rounds.
        steps: local steps of a round.
        batch_size: rows of a step.
        seeds: trainings of each method.
        metric: ``"accuracy"`` or ``"macro_f1"``.
        engine: where trainings run.
        unseen: leave the target's rows out of every training.
    """

    rounds: int = 60
    lr: float = 0.03
    steps: int = 12
    batch_size: int = 48
    seeds: int = 3
    metric: str = "accuracy"
    engine: str = "batched"
    unseen: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to choose from."""
        return UNSEEN if self.unseen else METHODS

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "macro_f1"):
            raise ConfigError(f"metric={self.metric!r}", where="adapt", remedy="use accuracy or macro_f1")


@dataclass(frozen=True)
class AdaptationRun:
    """One kind of training.

    Attributes:
        shape: of a row.
        classes: number of classes.
        algorithm: makes the method from the common settings.
        discriminator: ``""``, ``"plain"`` or ``"conditional"``.
        aligned: whether the method looks at features.
        sources_only: train without the target's party.
        gaussian: whether features are drawn, as `FedSR` needs.
    """

    shape: tuple[int, ...]
    classes: int
    algorithm: Callable[[AdaptationTerms], Algorithm]
    discriminator: str = ""
    aligned: bool = True
    sources_only: bool = False
    gaussian: bool = False

    def network(self) -> Any:
        """Return a fresh network: convolutions for images, one hidden layer for other rows."""
        from torch import nn

        from atoll.labels import DomainNetwork, GaussianNetwork

        if len(self.shape) == 3:
            side = self.shape[1] // 8 * (self.shape[2] // 8)
            widths = (self.shape[0], 8, 16, 32)
            layers: list[Any] = []
            for before, after in pairwise(widths):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
            features, width = nn.Sequential(*layers, nn.Flatten()), 32 * side
        else:
            features, width = nn.Sequential(nn.Linear(self.shape[0], 64), nn.ReLU()), 64
        if self.gaussian:
            return GaussianNetwork(features, width, self.classes, self.shape)
        judged = {"": 0, "plain": width, "conditional": width * self.classes}[self.discriminator]
        judge = nn.Sequential(nn.Linear(judged, 64), nn.ReLU(), nn.Linear(64, 1)) if judged else None
        made = DomainNetwork(
            features,
            nn.Linear(width, self.classes),
            discriminator=judge,
            conditional=self.discriminator == "conditional",
        )
        return made if self.aligned else made.alone()

    def outputs(self, islands: Islands, settings: AdaptationTerms, seed: int, x: NDArray[Any]) -> NDArray[Any]:
        """Return the trained model's logits for some rows."""
        import torch

        from atoll.data import Islands
        from atoll.data.missing import labelled_rows
        from atoll.learn import Evaluation, Training
        from atoll.learn.selection import Everyone
        from atoll.simulation import simulate

        job = Training(
            model=self.network,
            algorithm=self.algorithm(settings),
            selection=Everyone(),
            rounds=settings.rounds,
            evaluation=Evaluation(every=settings.rounds),
        )
        if self.sources_only:
            islands = Islands.from_datasets(
                {one.name: one.dataset() for one in islands if bool(labelled_rows(one).all())}
            ).with_test(islands.test)
        found = simulate(job, islands, engine=settings.engine, seed=seed, progress=False)
        with torch.no_grad():
            found.model.eval()
            parts = [found.model(part) for part in torch.split(torch.tensor(x), 1000)]
        return np.concatenate([part.numpy() for part in parts])


def runs_of(shape: tuple[int, ...], classes: int, methods: Sequence[str]) -> dict[str, AdaptationRun]:
    """Return the trainings of the sources alone, with each view, and those of the methods.

    Every method sees rows through the strongest of the views that the sources alone are trained with.
    """
    from atoll.labels import views
    from atoll.labels.methods.adaptation.efficientfda import EfficientFDA
    from atoll.labels.methods.adaptation.fade import FADE
    from atoll.labels.methods.adaptation.self_training import SelfTraining
    from atoll.labels.methods.supervised import Supervised
    from atoll.labels.methods.unseen.fedsr import FedSR
    from atoll.labels.views.inversion import Invert

    kind = "images" if len(shape) == 3 else "table"
    weak, strong = views.weak(kind), views.strong(kind)
    bridge = views.Compose([strong, Invert()]) if kind == "images" else strong

    def steps(settings: AdaptationTerms) -> dict[str, Any]:
        return {
            "lr": settings.lr,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "horizon": settings.rounds,
        }

    def alone(view: Any) -> AdaptationRun:
        return AdaptationRun(
            shape, classes, lambda s: Supervised(view=view, **steps(s)), aligned=False, sources_only=True
        )

    seen = {"none": None, "weak": weak, "strong": strong} | (
        {"strong, inverted": bridge} if bridge is not strong else {}
    )
    made = {f"source: {name}": alone(view) for name, view in seen.items()}
    all_of = {
        "SelfTraining": AdaptationRun(
            shape,
            classes,
            lambda s: SelfTraining(tau=0.8, warm=s.rounds // 5, weak=weak, strong=bridge, **steps(s)),
            aligned=False,
        ),
        "FADE": AdaptationRun(
            shape, classes, lambda s: FADE(view=bridge, ramp=max(1, s.rounds // 2), **steps(s)), "conditional"
        ),
        "DANN": AdaptationRun(
            shape,
            classes,
            lambda s: FADE(view=bridge, power=1, certain=False, ramp=max(1, s.rounds // 2), **steps(s)),
            "plain",
        ),
        "EfficientFDA": AdaptationRun(shape, classes, lambda s: EfficientFDA(view=bridge, **steps(s))),
        "FedSR": AdaptationRun(
            shape, classes, lambda s: FedSR(view=bridge, **steps(s)), sources_only=True, gaussian=True
        ),
    }
    return {**made, **{name: all_of[name] for name in methods}}
