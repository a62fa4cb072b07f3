"""Do rows without labels help? Methods that use them against the strongest of labelled rows alone: what ``atoll labels compare`` shows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from atoll.core.errors import ConfigError, nearest

from .label_rows import LabelSetting, accepts, with_few_labels

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands
    from atoll.learn import Algorithm

__all__ = [
    "LabelRuns",
    "choose_methods",
    "compare_methods",
    "known_methods",
    "outputs_of",
    "probe_model",
    "tell_in_turn",
]


# Probes of ``atoll labels compare --at none``: how much of the classes is in features that were learned without labels.


_COPIES = 20
"""Views of each labelled row that a probe is fitted on, beside the row itself: with 6, a probe knew .922 of held-out training rows of MNIST, with 20 .925."""


def probe_model(model: Any, islands: Islands, view: Any = None, seed: int = 0) -> float:
    """Return the accuracy on the test rows of a linear probe, fitted on the rows that only measure, and on views of them.

    A linear evaluation sees its training rows through views since Chen et al. SimCLR, ICML 2020: a few rows say little about which directions of
    the features do not matter, and views of them say more. The penalty is that of `atoll.labels.evaluators.fit_probe` for each labelled row, however many views it has.

    Args:
        model: makes features of rows; ``None`` for a probe on the rows themselves.
        islands: parties, with rows to test on.
        view: how the probe sees labelled rows; ``None``: as they are.
        seed: of the views.
    """
    from atoll.data.labels import PROBE
    from atoll.labels.evaluators import fit_probe

    some, test = islands.others[PROBE], cast("Dataset", islands.test)  # a setting always has rows to test on
    x, y, copies = np.array(some["x"]), np.array(some["y"]), 1
    if view is not None:
        x, y, copies = np.concatenate([x, _make_views(x, view, seed)]), np.tile(y, 1 + _COPIES), 1 + _COPIES

    def features(rows: Any) -> Any:
        return rows if model is None else outputs_of(model.eval(), rows)

    probe = fit_probe(features(x), y, classes=islands.classes, l2=float(copies))
    return probe.accuracy(features(test["x"]), test["y"])


def outputs_of(model: Any, x: Any) -> Any:
    """Return what a model makes of rows, 500 at a time."""
    import torch

    with torch.no_grad():
        return torch.cat(
            [model(torch.from_numpy(np.array(part))) for part in np.array_split(x, -(-len(x) // 500))]
        ).numpy()


def _make_views(x: Any, view: Any, seed: int) -> Any:
    """Return views of rows, all of the first ones, then all of the second ones, and so on."""
    import torch

    from atoll.labels.losses import seen
    from atoll.labels.views.draws import row_keys

    rows, there = torch.from_numpy(x), torch.ones(len(x))
    keys = row_keys(torch.tensor([seed, 0]), torch.arange(len(x)))
    return torch.cat([seen(view, rows, keys, number, there) for number in range(_COPIES)]).numpy()


_COHORT = 5
_VIEWS = ("no", "weak", "strong")
_COSTS = ("seconds", "processor", "bytes_up", "bytes_down")


def known_methods(at: str = "rows") -> tuple[str, ...]:
    """Return the names of methods that train a classifier with labels somewhere; with ``at="none"``, of those that need none."""
    import atoll.labels
    from atoll.labels import Method
    from atoll.labels.methods.selfsupervised import SelfSupervised
    from atoll.labels.survey import SURVEY

    found = {name: getattr(atoll.labels, name) for name in dir(atoll.labels)}
    kinds = {n: k for n, k in found.items() if isinstance(k, type) and issubclass(k, Method)}
    if at == "none":
        return tuple(
            sorted(
                n
                for n, k in kinds.items()
                if issubclass(k, SelfSupervised)
                and accepts(k, "view")
                and n not in ("SelfSupervised", "FedX", "FedMAE")
            )
        )
    others = {one.part for one in SURVEY if one.family != "semi"} | {
        "Method",
        "LabelledParty",
        "Supervised",
        "SelfTraining",
        "FedSR",  # for domains that nobody has, with a network of its own
        "RobustSelfTraining",  # measured under attack: atoll reproduce labels-robust
    }
    own = [n for n, k in kinds.items() if n not in others and not issubclass(k, SelfSupervised)]
    return tuple(sorted([*own, "Relabel"]))


@dataclass(frozen=True)
class LabelRuns:
    """Trainings on one data set in one setting.

    Attributes:
        rows: all rows, with rows to test on.
        setting: who has which labels.
        rounds: rounds of a method.
        lr: learning rate of all trainings, with a cosine schedule; ``None``: .03, and without labels each method's own.
        party: column that names a row's owner.
        guard: let held-out labels decide whether a method stays.
    """

    rows: Dataset
    setting: LabelSetting
    rounds: int
    lr: float | None = None
    party: str | None = None
    guard: bool = False

    def islands(self, seed: int) -> Islands:
        """Return the parties of a seed."""
        return with_few_labels(self.rows, self.setting, seed, self.party)

    @property
    def rate(self) -> float | None:
        """The learning rate to set; ``None`` for a method's own."""
        return 0.03 if self.lr is None and self.setting.at != "none" else self.lr

    @property
    def images(self) -> bool:
        """Whether rows are images: channels, height and width."""
        return self.rows["x"].ndim == 4

    def network(self) -> Any:
        """Return a network: three convolutions of 8, 16 and 32 filters with group normalisation for images, one hidden layer of 64 for other rows."""
        from torch import nn

        return nn.Sequential(self.encoder(), self.head())

    @property
    def features(self) -> int:
        """Numbers that the encoder gives for a row."""
        if not self.images:
            return 64
        sides = self.rows["x"].shape[2:]
        return 32 * int(np.prod([(side + 1) // (8 if self._deep else 4) for side in sides]))

    @property
    def _deep(self) -> bool:
        """Whether images are halved three times: a probe on few labels needs few features."""
        return self.setting.at == "none" and min(self.rows["x"].shape[2:]) >= 8

    def head(self) -> Any:
        """Return the network's last layer."""
        from torch import nn

        return nn.Linear(self.features, int(self.rows.classes or 2))

    def encoder(self, whole: bool = False) -> Any:
        """Return the network without its last layer.

        Images are halved by the first convolution's stride and by one pooling. For a probe on few labels a second pooling follows: of 28 x 28 pixels, 3 x 3
        places remain, and 288 features.

        Args:
            whole: let the first convolution see every pixel, and pool in place of the stride. That takes more time, and learns as much: a probe knew .914
                of held-out training rows of MNIST, and .919 with the stride (12 rounds of `FedSimCLR`, one seed). Untrained, it makes the better features.
        """
        from torch import nn

        shape = self.rows["x"].shape[1:]
        if not self.images:
            return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 64), nn.ReLU())
        layers: list[Any] = [
            nn.Conv2d(shape[0], 8, 3, padding=1) if whole else nn.Conv2d(shape[0], 8, 5, stride=2, padding=2)
        ]
        layers += [nn.GroupNorm(4, 8), *([nn.MaxPool2d(2)] if whole else []), nn.ReLU()]
        layers += [nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.ReLU()]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32)]
        return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if self._deep else []), nn.ReLU(), nn.Flatten())

    def siamese(self, whole: bool = False) -> Any:
        """Return the encoder with the heads of self-supervised methods."""
        from atoll.labels.heads import Siamese

        features = 32 * int(np.prod([side // 8 for side in self.rows["x"].shape[2:]])) if whole else self.features
        return Siamese(self.encoder(whole), features, predictor=True, turns=self.images)

    def views(self) -> dict[str, Any]:
        """Return no, the weak and the strong view of such rows."""
        from atoll.labels.views.defaults import strong, weak

        kind = "images" if self.images else "table"
        return {"no": None, "weak": weak(kind), "strong": strong(kind)}

    @property
    def contrasted(self) -> Any:
        """What makes both views of a row for self-supervised methods: the strong view, and of images thicker or thinner strokes too.

        With them, a probe knew .929 of held-out training rows of MNIST, in place of .919 (12 rounds, one seed, means over draws of labels).
        """
        strong = self.views()["strong"]
        if not self.images:
            return strong
        from atoll.labels.views.base import Compose
        from atoll.labels.views.pixels import Thicken

        moved, *others = strong.links
        return Compose([moved, Thicken(), *others])

    def method(self, name: str) -> Algorithm:
        """Return a method with its own settings, the common rate and a cosine schedule over the rounds; the second of ``"FedSimCLR+SemiFL"``.

        Raises:
            ConfigError: there is no such method.
        """
        import atoll.labels

        before, plus, name = name.rpartition("+")
        if plus:
            self.pretraining(f"{before}+{name}")
        known = known_methods(self.setting.at)
        if name not in known:
            raise ConfigError(
                f"method {name!r}.{nearest(name, known)}", where="atoll labels compare", remedy=f"use labelled, {', '.join(known)}"
            )  # fmt: skip
        views = self.views()
        if name == "Relabel":
            return atoll.labels.Relabel(base=self.method("FixMatch"), view=views["weak"])
        kind = getattr(atoll.labels, name)
        wanted: dict[str, Any] = {
            "lr": self.rate,
            "horizon": self.rounds,
            "view": self.contrasted if self.setting.at == "none" else views["strong"],
            "weak": views["weak"],
            "strong": views["strong"],
            "labels_at": "server" if self.setting.at == "server" else "clients",
        }
        made: Algorithm = kind(**{setting: value for setting, value in wanted.items() if accepts(kind, setting)})
        return made

    def guard_algorithm(self, algorithm: Algorithm) -> Algorithm:
        """Return a method in a guard, if there is one, beside labelled rows through the strong view, which take as many steps of the model.

        Raises:
            ConfigError: no label can judge, or the method's clients keep something.
        """
        if not self.guard:
            return algorithm
        if self.setting.at == "none":
            raise ConfigError(
                "--guard with --at none: no label can judge",
                where="atoll labels compare",
                remedy="leave out --guard, or keep labels somewhere: --at server --keep 40",
            )
        from atoll.labels import Guard, Supervised
        from atoll.labels.methods import local_sgd

        steps = -(-self.steps(algorithm) // self.rounds)
        view = self.views()["strong"]
        plain = Supervised(base=local_sgd(self.rate or 0.03, steps, 48), view=view, horizon=self.rounds)
        return Guard(base=algorithm, plain=plain, after=self.rounds // 2)

    def pretraining(self, name: str) -> Algorithm | None:
        """Return the self-supervised method before a method, the first of ``"FedSimCLR+SemiFL"``; ``None`` without one.

        Raises:
            ConfigError: there is no such method, or labels are nowhere, so that nothing comes after it.
        """
        before, plus, after = name.rpartition("+")
        if not plus:
            return None
        if self.setting.at == "none":
            raise ConfigError(
                f"method {name!r} with --at none: no label is left to train {after or 'a second method'} on",
                where="atoll labels compare",
                remedy=f"use {before}, or labels somewhere: --at server --keep 40",
            )
        return self._without_labels.method(before)

    @property
    def _without_labels(self) -> LabelRuns:
        """The same rows, where nobody has labels: each method has its own rate, unless one is given."""
        return replace(self, setting=replace(self.setting, at="none"))

    def train_method(self, name: str, seed: int) -> dict[str, Any]:
        """Train with a method, and measure it on the test rows: ``score``, ``coverage``, ``purity``, ``seconds``, ``bytes_up``, ``bytes_down``."""
        import atoll

        islands = self.islands(seed)
        method = self.method(name)
        algorithm, tau = self.guard_algorithm(method), getattr(method, "tau", None)
        cohort: Any = atoll.Uniform(min(_COHORT, len(islands)))
        if self.setting.at == "none":
            bare, made = islands.with_test(None), {}
            made = self._run(algorithm, bare, seed, cohort, self.rounds, None, self.siamese)
            return {**made, "score": probe_model(made.pop("model"), islands, self.views()["strong"], seed)}
        first = self.pretraining(name)
        if first is None:
            return self._run(algorithm, islands, seed, cohort, self.rounds, tau)
        from atoll.labels import Pretrained

        before = self._run(first, islands.with_test(None), seed, cohort, self.rounds, None, self.siamese)
        model = Pretrained(before["model"], self.head)
        made = self._run(algorithm, islands, seed, cohort, self.rounds, tau, model)
        return {**made, **{cost: before[cost] + made[cost] for cost in _COSTS}}

    def steps(self, algorithm: Any) -> int:
        """Return the steps that the global model sees one after another in all rounds of a method: as many as the baseline takes. None takes none."""
        if algorithm is None:
            return 0
        own = int(algorithm.steps or 1) + int(getattr(algorithm, "label_steps", 0))
        return int(getattr(algorithm, "warm_up", 0)) + self.rounds * own

    def baselines(self, seed: int, steps: int) -> dict[str, float]:
        """Return the scores of trainings on all labelled rows in one place, by view; without labels, those of probes on pixels and on an untrained network, by view."""
        import atoll
        from atoll.data import Islands
        from atoll.labels import Supervised
        from atoll.labels.methods import local_sgd

        islands = self.islands(seed)
        if self.setting.at == "none":
            from atoll.torch import seeded

            sources = {"pixels": None, "untrained": seeded(self.siamese, seed)}
            if self._deep:
                sources["untrained without stride"] = seeded(lambda: self.siamese(whole=True), seed)
            return {
                f"{source}, {name} views": probe_model(model, islands, view, seed)
                for source, model in sources.items()
                for name, view in self.views().items()
            }
        known = _gather_labelled(islands)
        alone = Islands.from_datasets({"labelled": known}).with_test(islands.test)
        rounds = max(1, -(-steps // 50))
        made = {}
        for name, view in self.views().items():
            base = local_sgd(self.rate or 0.03, 50, 48)
            job = Supervised(base=base, view=view, horizon=rounds)
            made[name] = self._run(job, alone, seed, atoll.Everyone(), rounds, None)["score"]
        return made

    def _run(
        self,
        algorithm: Any,
        islands: Islands,
        seed: int,
        selection: Any,
        rounds: int,
        tau: float | None,
        model: Any = None,
    ) -> dict[str, Any]:
        import atoll
        from atoll.labels.evaluators import coverage, purity
        from atoll.learn import Evaluation

        job = atoll.Training(
            model=model or self.network, algorithm=algorithm, rounds=rounds, selection=selection, evaluation=Evaluation(every=rounds)
        )  # fmt: skip
        begin, spent = time.perf_counter(), _measure_processor()
        result = atoll.simulate(job, islands, engine="batched", seed=seed, progress=False)
        made: dict[str, Any] = {
            **(
                {"model": result.model}
                if islands.test is None
                else {"score": float(result.metrics.last("test/accuracy"))}
            ),
            "seconds": time.perf_counter() - begin,
            "processor": _measure_processor() - spent,
            "bytes_up": int(sum(row.get("bytes_up", 0) for row in result.history)),
            "bytes_down": int(sum(row.get("bytes_down", 0) for row in result.history)),
        }
        if hasattr(algorithm, "verdict"):
            made["guard"] = algorithm.verdict(result.metrics)
        if tau is not None and islands.test is not None:
            scores = outputs_of(result.model, islands.test["x"])
            truth = islands.test["y"]
            made |= {"coverage": coverage(scores, tau), "purity": purity(scores, truth, tau)}
        return made


def _measure_processor() -> float:
    """Return the seconds of a processor that this process took, and those that it started and that have ended."""
    return sum(os.times()[:4])


def _gather_labelled(islands: Islands) -> Any:
    """Return all rows that have a label, at clients and at the party with labels, as one data set."""
    from atoll.data import Dataset
    from atoll.data.labels import LABELS

    parts: list[Any] = [*islands, *([islands.others[LABELS]] if LABELS in islands.others else [])]
    x, y = [], []
    for part in parts:
        there = (
            np.asarray(part["labelled"]).astype(bool) if "labelled" in part.columns else np.ones(len(part["y"]), bool)
        )
        x.append(np.asarray(part["x"])[there])
        y.append(np.asarray(part["y"])[there])
    return Dataset({"x": np.concatenate(x), "y": np.concatenate(y)}, classes=islands.classes)


def _median_of(runs: Sequence[dict[str, Any]], name: str) -> Any:
    """Return the median of a measure over seeds; ``None`` if it was not measured."""
    found = [run[name] for run in runs if name in run]
    return float(np.median(found)) if found else None


# The comparison itself.


def choose_methods(methods: str | None, setting: LabelSetting) -> list[str]:
    """Return the methods that are named, without the baseline; with no names, one that fits who has which labels."""
    if methods is None:
        return ["ForwardCorrection" if setting.wrong else "FedSimCLR" if setting.at == "none" else "SemiFL"]
    return [name for name in methods.split(",") if name and name != "labelled"]


def compare_methods(
    runs: LabelRuns, names: list[str], seeds: int, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return the comparison of methods with labelled rows alone.

    Args:
        runs: the trainings, `LabelRuns`.
        names: methods.
        seeds: trainings of each; labelled rows and parties follow the seed.
        tell: gets a line about each training that has ended.
    """
    from atoll.labels.evaluators import paired_gain

    made = {name: runs.method(name) for name in names}  # refuses an unknown name before anything is trained
    before = {name: runs.pretraining(name) for name in names}
    steps = max([runs.steps(one) + runs.steps(before[name]) for name, one in made.items()], default=500)
    told = tell_in_turn(tell, seeds * (1 + len(names)))
    alone = []
    for seed in range(seeds):
        alone.append(runs.baselines(seed, steps))
        told("baselines", seed, max(alone[-1].values()))
    strongest = max(alone[0], key=lambda view: float(np.median([scores[view] for scores in alone])))
    base = [scores[strongest] for scores in alone]
    medians_of = {view: float(np.median([scores[view] for scores in alone])) for view in alone[0]}
    methods: dict[str, Any] = {}
    helped: list[str] = []
    for name in names:
        trained = []
        for seed in range(seeds):
            trained.append(runs.train_method(name, seed))
            told(name, seed, trained[-1]["score"])
        scores = [one["score"] for one in trained]
        gain = paired_gain(scores, base)
        methods[name] = {
            "scores": scores,
            "median": float(np.median(scores)),
            "gain": gain.gain,
            "interval": None if gain.interval is None else list(gain.interval),
            **{what: _median_of(trained, what) for what in ("coverage", "purity", "seconds")},
            **{what: int(_median_of(trained, what)) for what in ("bytes_up", "bytes_down")},
            **_describe_method(name),
            **({"guard": [one["guard"] for one in trained]} if runs.guard else {}),
        }
        helped += [name] if gain.helped else []
    return {
        "setting": {
            **asdict(runs.setting),
            "rounds": runs.rounds,
            "lr": runs.rate,
            "seeds": seeds,
            "steps": steps,
            "baselines": medians_of,
        },
        "rows": len(runs.rows),
        "metric": "probe accuracy" if runs.setting.at == "none" else "accuracy",
        "baseline": {
            "name": f"a probe on {strongest}"
            if runs.setting.at == "none"
            else f"labelled rows in one place, {strongest} views",
            "scores": base,
            "median": float(np.median(base)),
        },
        "methods": methods,
        "helped": helped,
    }


def tell_in_turn(tell: Callable[[str], None], trainings: int) -> Callable[[str, int, float | None], None]:
    """Return a function that tells, after each of some trainings, which one it was, its score, and the time that it took."""
    done, begun = 0, time.perf_counter()

    def tell_score(name: str, seed: int, score: float | None) -> None:
        nonlocal done, begun
        done, now = done + 1, time.perf_counter()
        reached = "" if score is None else f", {score:.3f}"
        tell(f"{done} of {trainings}: {name}, seed {seed}{reached}, in {now - begun:.1f} s")
        begun = now

    return tell_score


_OUTSIDE = {"ForwardCorrection": "counts of neighbours' labels"}
"""What methods that are not in the survey expose."""


def _describe_method(name: str) -> dict[str, str]:
    """Return what a method, or each of two, keeps at clients and exposes."""
    from atoll.labels.survey import SURVEY

    cards = {one.part: one for one in SURVEY if one.part}
    known = [cards[part] for part in name.split("+") if part in cards]
    state = [one.state for one in known if one.state != "none"]
    shown = [one.exposes for one in known if one.exposes != "nothing"]
    shown += [_OUTSIDE[part] for part in name.split("+") if part in _OUTSIDE]
    return {"client_state": "; ".join(state) or "none", "exposes": "; ".join(shown) or "nothing"}
