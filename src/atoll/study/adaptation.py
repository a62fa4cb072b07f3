"""What are the rows of a domain without labels worth? Methods against labelled rows of the sources alone: what ``atoll labels adapt`` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, nearest

from .label_methods import tell_in_turn
from .label_rows import as_floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import Dataset, Islands
    from atoll.learn.algorithm import Algorithm

__all__ = [
    "GUARDED",
    "JUDGING",
    "METHODS",
    "UNSEEN",
    "AdaptationRun",
    "AdaptationTerms",
    "AdaptedModel",
    "committee_of",
    "compare_adaptation",
    "domains_of",
    "judge_of",
    "macro_f1",
    "pair_of",
    "runs_of",
    "sources_alone",
    "sources_at_server",
    "sources_of",
    "target_at_helper",
    "with_judge",
    "without",
]


# Who has which rows when domains are compared: sources and target as each method wants them, and a domain that judges.


JUDGING = "judging"
"""The column of rows whose labels judge and do not teach."""


def sources_of(islands: Islands) -> dict[str, Dataset]:
    """Return the domains with labels by name."""
    return {one.name: one.dataset() for one in islands if _is_labelled(one)}


def _is_labelled(one: Any) -> bool:
    from atoll.data.missing import labelled_rows

    return bool(labelled_rows(one).all())


def _target_of(islands: Islands) -> tuple[str, Dataset]:
    return next((one.name, one.dataset()) for one in islands if not _is_labelled(one))


def _islands_of(parts: dict[str, Dataset], islands: Islands) -> Islands:
    from atoll.data import Islands

    return Islands.from_datasets(parts).with_test(islands.test)


def sources_alone(islands: Islands) -> Islands:
    """Return the domains with labels, as clients."""
    return _islands_of(sources_of(islands), islands)


def target_at_helper(islands: Islands) -> Islands:
    """Return the domains with labels as clients, and the target as a helper party: as `FADA` wants it."""
    return sources_alone(islands).with_others({"target": _target_of(islands)[1]})


def sources_at_server(islands: Islands) -> Islands:
    """Return the target as the only client, and all labelled rows at one helper party: as `DualAdapt` wants it."""
    from atoll.data.join import concatenate

    name, rows = _target_of(islands)
    return _islands_of({name: rows}, islands).with_others({"labels": concatenate(list(sources_of(islands).values()))})


def pair_of(islands: Islands, source: str) -> Islands:
    """Return a source and the target: as `FRuDA` wants it."""
    name, rows = _target_of(islands)
    return _islands_of({source: sources_of(islands)[source], name: rows}, islands)


def judge_of(islands: Islands) -> str:
    """Return the name of the smallest source, which judges."""
    sources = sources_of(islands)
    return min(sources, key=lambda name: (len(sources[name]), name))


def without(islands: Islands, name: str) -> Islands:
    """Return the same domains without one."""
    return _islands_of({one.name: one.dataset() for one in islands if one.name != name}, islands)


def with_judge(islands: Islands) -> Islands:
    """Return the same domains with a column that marks the labels of the smallest source: no training sees them, and they judge."""
    judge = judge_of(islands)
    parts: dict[str, Any] = {one.name: one.dataset() for one in islands}
    marked = {name: rows.with_columns({JUDGING: np.full(len(rows), name == judge)}) for name, rows in parts.items()}
    return _islands_of(marked, islands)


METHODS = ("SelfTraining", "FADE", "DANN", "EfficientFDA", "FADA", "DualAdapt", "FRuDA")
UNSEEN = ("FedSR",)
"""Methods that need no row of the target."""
GUARDED = ("SelfTraining", "FADE", "DANN")
"""Methods that a guard can go around: their clients keep nothing, and at weight 0 they are the sources alone."""


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
        guard: let the labels of one source judge; ``None``: if there are two sources or more.
        unseen: leave the target's rows out of every training.
    """

    rounds: int = 60
    lr: float = 0.03
    steps: int = 24
    batch_size: int = 48
    seeds: int = 3
    metric: str = "accuracy"
    engine: str = "batched"
    guard: bool | None = None
    unseen: bool = False

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "macro_f1"):
            raise ConfigError(f"metric={self.metric!r}", where="adapt", remedy="use accuracy or macro_f1")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to choose from."""
        return UNSEEN if self.unseen else METHODS

    @property
    def warm(self) -> int:
        """Rounds of labelled rows alone, before guesses count."""
        return self.rounds // 5

    @property
    def base(self) -> Algorithm:
        """Local steps whose momentum goes on from round to round, averaged like the model."""
        from atoll.labels.methods import local_sgd

        return local_sgd(self.lr, self.steps, self.batch_size, memory="server")


@dataclass(frozen=True)
class AdaptedModel:
    """What a training has left.

    Attributes:
        model: maps rows to logits.
        guard: ``{"on": whether the method stayed, "gain": nats that it gained at the judging labels}``; ``None`` without a guard.
    """

    model: Any
    guard: dict[str, Any] | None = None

    def outputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return logits of some rows."""
        import torch

        self.model.eval()
        with torch.no_grad():
            parts = [self.model(part) for part in torch.split(torch.tensor(x), 1000)]
        return np.concatenate([part.numpy() for part in parts])


@dataclass(frozen=True)
class AdaptationRun:
    """One kind of training.

    Attributes:
        shape: of a row.
        classes: number of classes.
        algorithm: makes the method from the common settings.
        parts: of the network: ``"judge"``, ``"conditional"`` (a discriminator of classes times features), ``"second"``, ``"alone"``: no more than logits, or
            ``"gaussian"``: features are drawn, as `FedSR` needs.
        parties: who has which rows.
        guarded: whether a source judges.
    """

    shape: tuple[int, ...]
    classes: int
    algorithm: Callable[[AdaptationTerms], Algorithm]
    parts: tuple[str, ...] = ()
    parties: Callable[[Islands], Islands] = field(default=lambda islands: islands)
    guarded: bool = False

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
        if "gaussian" in self.parts:
            return GaussianNetwork(features, width, self.classes, self.shape)
        conditional = "conditional" in self.parts
        judged = width * self.classes if conditional else width
        judge = nn.Sequential(nn.Linear(judged, 64), nn.ReLU(), nn.Linear(64, 1))
        made = DomainNetwork(
            features,
            nn.Linear(width, self.classes),
            second=nn.Linear(width, self.classes) if "second" in self.parts else None,
            discriminator=judge if conditional or "judge" in self.parts else None,
            conditional=conditional,
        )
        return made.alone() if "alone" in self.parts else made

    def judged(self, islands: Islands, settings: AdaptationTerms) -> bool:
        """Return whether a guard stands by."""
        return self.guarded and settings.guard is not False and (bool(settings.guard) or len(sources_of(islands)) > 1)

    def train_domains(self, islands: Islands, settings: AdaptationTerms, seed: int) -> AdaptedModel:
        """Train on domains, of which one has no labels."""
        if self.judged(islands, settings):
            return self._train_guarded(islands, settings, seed)
        return AdaptedModel(
            self._run(self.algorithm(settings), self.parties(islands), settings, seed, self.network).model
        )

    def _train_guarded(self, islands: Islands, settings: AdaptationTerms, seed: int) -> AdaptedModel:
        """Train beside the sources alone, with a judge: a whole source if there are two or more, and else a fifth of the source's rows."""
        from atoll.labels import Guard

        method, several = self.algorithm(settings), len(sources_of(islands)) > 1
        terms: dict[str, Any] = {"after": settings.rounds * 3 // 4}
        terms |= {"column": JUDGING, "z": -1.0} if several else {"slack": 0.05 * float(np.log(self.classes))}
        guard = Guard(base=method, plain=replace(method, weight=0.0), **terms)  # type: ignore[call-arg]
        found = self._run(guard, with_judge(islands) if several else islands, settings, seed, self.network)
        return AdaptedModel(found.model, guard.verdict(found.metrics))

    def _run(self, algorithm: Algorithm, islands: Islands, settings: AdaptationTerms, seed: int, model: Any) -> Any:
        from atoll.learn import Evaluation, Training
        from atoll.learn.selection.uniform import Everyone
        from atoll.simulation import simulate

        job = Training(
            model=model,
            algorithm=algorithm,
            selection=Everyone(),
            rounds=settings.rounds,
            evaluation=Evaluation(every=settings.rounds),
        )
        return simulate(job, islands, engine=settings.engine, seed=seed, progress=False)


@dataclass(frozen=True)
class CollaboratorRun(AdaptationRun):
    """FRuDA: every source trains a model of its own, the target chooses one by the bound of eq. 99, and adapts to it.

    Attributes:
        alone: makes the training of one source.
    """

    alone: Callable[[AdaptationTerms], Algorithm] = field(kw_only=True)

    def train_domains(self, islands: Islands, settings: AdaptationTerms, seed: int) -> AdaptedModel:
        """Train the sources, choose, and adapt."""
        from atoll.data import Islands
        from atoll.labels.methods.collaborators import Candidate, Collaborators
        from atoll.simulation import simulate

        plain, target = replace(self, parts=("alone",)), next(n for n in islands.names if n not in sources_of(islands))
        own = {
            name: self._run(
                self.alone(settings), Islands.from_datasets({name: rows}), settings, seed, plain.network
            ).params
            for name, rows in sources_of(islands).items()
        }
        choice = Collaborators(model=plain.network, candidates={name: Candidate(p) for name, p in own.items()}, least=1)
        chosen = simulate(choice.program(target), islands, engine="inline", seed=seed, progress=False)[0].name
        start = lambda: _fill_network(self.network(), own[chosen])  # noqa: E731
        return AdaptedModel(self._run(self.algorithm(settings), pair_of(islands, chosen), settings, seed, start).model)


def committee_of(
    runs: Sequence[AdaptationRun],
    models: Sequence[AdaptedModel],
    islands: Islands,
    settings: AdaptationTerms,
    seed: int,
) -> AdaptedModel:
    """Return the sources' trainings as one model, a `Committee`: what a guard falls back to.

    With two sources or more, each training runs once more without the domain that judges, whose labels then weigh the members. A single source leaves them equal.
    """
    from atoll.labels import Committee, committee_weights

    sources, weights = sources_of(islands), None
    if len(sources) > 1:
        judge = judge_of(islands)
        fewer, rows = without(islands, judge), sources[judge]
        weights = committee_weights([run.train_domains(fewer, settings, seed).outputs(rows.x) for run in runs], rows.y)
    return AdaptedModel(Committee([one.model for one in models], weights))


def _fill_network(network: Any, params: Mapping[str, Any]) -> Any:
    """Return a network with some of its parameters replaced."""
    import torch

    network.load_state_dict({name: torch.tensor(np.asarray(leaf)) for name, leaf in params.items()}, strict=False)
    return network


def runs_of(shape: tuple[int, ...], classes: int, methods: Sequence[str]) -> dict[str, AdaptationRun]:
    """Return the trainings of the sources alone, with each view, and those of the methods.

    Methods see images through the strong view with some of them inverted, which bridges domains of light and dark ground; where it moves or cuts an image, it fills
    with the image's own border and mean, since the ground need not be dark. They see other rows as they are: no view of a table is known to keep what a row means.
    """
    from atoll import views
    from atoll.labels import FADA, FADE, DualAdapt, EfficientFDA, FedSR, FRuDA, SelfTraining, Supervised
    from atoll.labels.methods import local_sgd
    from atoll.labels.views.geometry import Affine, Translate
    from atoll.labels.views.pixels import ColourJitter, Cutout, Invert

    kind = "images" if len(shape) == 3 else "table"
    weak, strong = views.weak(kind), views.strong(kind)
    seen: dict[str, Any] = {"none": None, "weak": weak, "strong": strong}
    moved = [Affine(fill=None), ColourJitter((0.3, 1.3), (1.0, 1.0)), Cutout(fill=None)]
    bridge = views.Compose([*moved, Invert()]) if kind == "images" else None
    near = Translate(fill=None) if kind == "images" else None
    if bridge is not None:
        seen |= {"strong, inverted": views.Compose([strong, Invert()]), "strong, inverted, own ground": bridge}

    def pick_kept(s: AdaptationTerms) -> dict[str, Any]:
        return {"base": s.base, "horizon": s.rounds}

    def fresh(s: AdaptationTerms) -> dict[str, Any]:
        return {"base": local_sgd(s.lr, s.steps, s.batch_size), "horizon": s.rounds}

    def run(algorithm: Callable[[AdaptationTerms], Algorithm], *parts: str, **more: Any) -> AdaptationRun:
        return AdaptationRun(shape, classes, algorithm, parts, **more)

    def alone(view: Any) -> Callable[[AdaptationTerms], Algorithm]:
        return lambda s: Supervised(view=view, **pick_kept(s))

    def self_training(s: AdaptationTerms) -> Algorithm:
        grown: dict[str, Any] = {"warm": s.warm, "grow": s.rounds - s.warm, "portion": 0.6}
        return SelfTraining(tau=0.8 if classes > 2 else 0.9, weak=near, strong=bridge, **grown, **pick_kept(s))

    def game(s: AdaptationTerms, **more: Any) -> Algorithm:
        return FADE(view=bridge, ramp=max(1, s.rounds // 2), **more, **pick_kept(s))

    made = {f"source: {name}": run(alone(view), "alone", parties=sources_alone) for name, view in seen.items()}
    all_of = {
        "SelfTraining": run(self_training, "alone", guarded=True),
        "FADE": run(game, "conditional", guarded=True),
        "DANN": run(lambda s: game(s, power=1, certain=False), "judge", guarded=True),
        "EfficientFDA": run(lambda s: EfficientFDA(view=bridge, **fresh(s))),
        "FADA": run(lambda s: FADA(view=bridge, rows=256, **fresh(s)), parties=target_at_helper),
        "DualAdapt": run(lambda s: DualAdapt(view=bridge, **fresh(s)), "second", parties=sources_at_server),
        "FedSR": run(lambda s: FedSR(view=bridge, **pick_kept(s)), "gaussian", parties=sources_alone),
        "FRuDA": CollaboratorRun(
            shape, classes, lambda s: FRuDA(view=bridge, **{**fresh(s), "steps": 4}), ("judge",), alone=alone(bridge)
        ),
    }
    return {**made, **{name: all_of[name] for name in methods}}


# What adaptation gains: methods between domains beside labelled rows of the sources alone.


PARTY = "party"
SHOWN = ("source", "strong", "fallback", "adapted", "gain")


def domains_of(
    data: Sequence[str],
    *,
    label: str | None = None,
    text: str | None = None,
    party: str | None = None,
    seed: int = 0,
    **more: Any,
) -> Dataset:
    """Return the rows of all domains, with test rows of each and a column ``party`` that names the domain.

    Texts become `atoll.data.WordVectors` over the training texts of all domains, the target's too: no label is read.

    Args:
        data: one name, archive or table with a column of domains, or an archive or a table for each domain, called by its file.
        label: column to predict, for tables.
        text: column of texts.
        party: column that names the domain of each row.
        seed: draws test rows.
        more: further settings of `atoll.data.read_data`.

    Raises:
        DataError: one file without a column of domains, or two files of one name.
    """
    from atoll.data import WordVectors, read_data, with_text_vectors
    from atoll.data.join import concatenate

    table = next((one for one in data if one.endswith((".csv", ".csv.gz"))), None)
    if table is not None and label is None:
        raise DataError("the column to predict is not set", where=table, remedy="name it: --label COLUMN")
    words: Any = WordVectors() if len(data) == 1 else False  # the texts of several files are fitted at once, below
    given = {"target": label, "text": text, "party": party, "seed": seed, "vectors": words, **more}
    made = [read_data(one, **given) for one in data]
    if len(made) == 1:
        if PARTY not in made[0]:
            raise DataError(
                f"{data[0]} has no domains",
                where="adapt",
                remedy="name the column with --party, or give a file a domain",
            )
        return as_floats(made[0])
    names = [Path(one).name.split(".")[0] for one in data]
    if len(set(names)) < len(names):
        raise DataError(
            "two domains of one name", where="adapt", remedy="rename a file: a domain is called like its file"
        )
    named = [
        _own_rows(one, name).with_test(None if one.test is None else _own_rows(one.test, name))
        for one, name in zip(map(as_floats, made), names, strict=True)
    ]
    whole = concatenate(named).with_test(concatenate([one.test for one in named if one.test is not None]))
    return whole if "x" in whole else with_text_vectors(whole, column=text or "text", form=WordVectors())


def _own_rows(rows: Dataset, name: str) -> Dataset:
    return rows.with_columns({PARTY: np.full(len(rows), name)}).with_test(None)


def compare_adaptation(
    data: Sequence[str],
    target: str,
    methods: Sequence[str],
    settings: AdaptationTerms,
    *,
    tell: Callable[[str], None] = lambda line: None,
    **given: Any,
) -> dict[str, Any]:
    """Train with and without the target's unlabelled rows, and return the scores on rows of the target that no training sees.

    Args:
        data: see `domains_of`.
        target: name of a domain, or ``"each"`` for every domain in turn.
        methods: of `AdaptationTerms.methods`.
        settings: of every training.
        tell: gets a line about each training that has ended.
        given: what else `domains_of` takes.

    Raises:
        ConfigError: an unknown name, or fewer than two domains.
    """
    rows = [domains_of(data, seed=seed, **given) for seed in range(settings.seeds)]
    known = sorted(set(rows[0][PARTY].tolist()))
    stem = Path(target).name.split(".")[0]
    target = stem if stem in known else target
    for name, have in ((target, (*known, "each")), *((method, settings.methods) for method in methods)):
        if name not in have:
            raise ConfigError(
                f"{name!r} is not known.{nearest(name, have)}", where="adapt", remedy=f"use one of {', '.join(have)}"
            )
    if len(known) < 2:
        raise ConfigError(
            "one domain", where="adapt", remedy="give the files of two domains or more, or --party for a column"
        )
    targets = known if target == "each" else [target]
    found = {name: _of_target(rows, name, methods, settings, tell) for name in targets}
    made = {
        "setting": {
            "domains": known,
            "target": target,
            "rounds": settings.rounds,
            "seeds": settings.seeds,
            "unseen": settings.unseen,
        },
        "metric": settings.metric,
        "targets": found,
    }
    return {**made, **{name: found[target][name] for name in SHOWN}} if len(targets) == 1 else made


def _of_target(
    rows: Sequence[Dataset], name: str, methods: Sequence[str], settings: AdaptationTerms, tell: Callable[[str], None]
) -> dict[str, Any]:
    from atoll.data import adaptation

    classes = 1 + max(int(rows[0].y.max()), int(rows[0].test.y.max()))  # type: ignore[union-attr]
    runs = runs_of(rows[0].x.shape[1:], classes, methods)
    scores: dict[str, list[float]] = {run: [] for run in runs}
    shown: dict[str, dict[str, Any]]
    seconds: dict[str, list[float]] = {run: [] for run in runs}
    guards: dict[str, list[Any]] = {run: [] for run in runs}
    alone = [run for run in runs if run not in methods]
    fallback: list[float] = []
    weights: list[list[float]] = []
    told = tell_in_turn(tell, settings.seeds * len(runs))
    for seed in range(settings.seeds):
        islands, _ = adaptation(rows[seed], name, by=PARTY, unseen=settings.unseen)
        models: dict[str, AdaptedModel] = {}
        for run, made in runs.items():
            begun = time.perf_counter()
            models[run] = made.train_domains(islands, settings, seed)
            seconds[run].append(time.perf_counter() - begun)
            guards[run].append(models[run].guard)
            told(f"target {name}, {run}", seed, None)
        if any(made.judged(islands, settings) for made in runs.values()):
            sources = [runs[run] for run in alone]
            committee = committee_of(sources, [models[run] for run in alone], islands, settings, seed)
            fallback.append(_score_model(committee, islands, settings))
            weights.append(committee.model.weights.tolist())
        for run, trained in models.items():
            fallen = trained.guard is not None and not trained.guard["on"]
            scores[run].append(fallback[-1] if fallen else _score_model(trained, islands, settings))
    shown = {
        run: {"scores": got, "median": median(got), "seconds": median(seconds[run])} for run, got in scores.items()
    }
    source = {run.removeprefix("source: "): shown[run] for run in alone}
    views, strong = max(source.items(), key=lambda one: one[1]["median"])
    gains = {
        method: {**_add_gain(shown[method], strong), "guard": _gather_verdicts(guards[method])} for method in methods
    }
    best = max(gains, key=lambda method: gains[method]["median"], default=None)
    return {
        "source": source,
        "strong": {"views": views, **strong},
        "fallback": {
            "members": list(source),
            "weights": weights,
            **_add_gain({"scores": fallback, "median": median(fallback)}, strong),
        }
        if fallback
        else None,
        "adapted": gains,
        "gain": None if best is None else gains[best]["gain"],
    }


def _add_gain(found: dict[str, Any], strong: dict[str, Any]) -> dict[str, Any]:
    """Return a method's scores with its gain over the strongest training of the sources alone, as medians and seed by seed."""
    apart = [a - b for a, b in zip(found["scores"], strong["scores"], strict=True)]
    return {**found, "gain": found["median"] - strong["median"], "gain_by_seed": apart}


def _gather_verdicts(found: list[Any]) -> dict[str, list[Any]] | None:
    """Return by seed whether the method stayed, and its gain at the judging labels; ``None`` for a method without a guard."""
    return None if None in found else {name: [one[name] for one in found] for name in ("on", "gain")}


def _score_model(trained: AdaptedModel, islands: Islands, settings: AdaptationTerms) -> float:
    """Return the score of a trained model on the target's held rows. For macro-F1 it answers by logits less the log of the classes' shares at the sources."""
    from atoll.labels.evaluators import balanced

    test: Any = islands.test
    outputs = trained.outputs(test.x)
    if settings.metric == "macro_f1":
        counts = sum(np.bincount(rows.y, minlength=outputs.shape[1]) for rows in sources_of(islands).values())
        return macro_f1(test.y, balanced(outputs, counts).argmax(axis=1))
    return float((outputs.argmax(axis=1) == test.y).mean())


def macro_f1(truth: NDArray[np.int64], guesses: NDArray[np.int64]) -> float:
    """Return the mean over the classes that occur of ``2 tp / (2 tp + fp + fn)``."""
    found = []
    for c in np.unique(truth):
        hit = int(((truth == c) & (guesses == c)).sum())
        found.append(2 * hit / (int((truth == c).sum()) + int((guesses == c).sum())))
    return float(np.mean(found))
