"""What adaptation gains: methods between domains beside labelled rows of the sources alone. ``atoll labels adapt`` shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, nearest

from .compare import told_in_turn
from .rows import as_floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import Dataset, Islands

    from .adaptation_runs import AdaptationTerms, AdaptedModel

__all__ = ["adapted", "domains_of", "macro_f1"]

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
        _owned(one, name).with_test(None if one.test is None else _owned(one.test, name))
        for one, name in zip(map(as_floats, made), names, strict=True)
    ]
    whole = concatenate(named).with_test(concatenate([one.test for one in named if one.test is not None]))
    return whole if "x" in whole else with_text_vectors(whole, column=text or "text", form=WordVectors())


def _owned(rows: Dataset, name: str) -> Dataset:
    return rows.with_columns({PARTY: np.full(len(rows), name)}).with_test(None)


def adapted(
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

    from .adaptation_runs import committee_of, runs_of

    classes = 1 + max(int(rows[0].y.max()), int(rows[0].test.y.max()))  # type: ignore[union-attr]
    runs = runs_of(rows[0].x.shape[1:], classes, methods)
    scores: dict[str, list[float]] = {run: [] for run in runs}
    shown: dict[str, dict[str, Any]]
    seconds: dict[str, list[float]] = {run: [] for run in runs}
    guards: dict[str, list[Any]] = {run: [] for run in runs}
    alone = [run for run in runs if run not in methods]
    fallback: list[float] = []
    weights: list[list[float]] = []
    told = told_in_turn(tell, settings.seeds * len(runs))
    for seed in range(settings.seeds):
        islands, _ = adaptation(rows[seed], name, by=PARTY, unseen=settings.unseen)
        models: dict[str, AdaptedModel] = {}
        for run, made in runs.items():
            begun = time.perf_counter()
            models[run] = made.trained(islands, settings, seed)
            seconds[run].append(time.perf_counter() - begun)
            guards[run].append(models[run].guard)
            told(f"target {name}, {run}", seed, None)
        if any(made.judged(islands, settings) for made in runs.values()):
            sources = [runs[run] for run in alone]
            committee = committee_of(sources, [models[run] for run in alone], islands, settings, seed)
            fallback.append(_score(committee, islands, settings))
            weights.append(committee.model.weights.tolist())
        for run, trained in models.items():
            fallen = trained.guard is not None and not trained.guard["on"]
            scores[run].append(fallback[-1] if fallen else _score(trained, islands, settings))
    shown = {
        run: {"scores": got, "median": median(got), "seconds": median(seconds[run])} for run, got in scores.items()
    }
    source = {run.removeprefix("source: "): shown[run] for run in alone}
    views, strong = max(source.items(), key=lambda one: one[1]["median"])
    gains = {method: {**_gain(shown[method], strong), "guard": _verdicts(guards[method])} for method in methods}
    best = max(gains, key=lambda method: gains[method]["median"], default=None)
    return {
        "source": source,
        "strong": {"views": views, **strong},
        "fallback": {
            "members": list(source),
            "weights": weights,
            **_gain({"scores": fallback, "median": median(fallback)}, strong),
        }
        if fallback
        else None,
        "adapted": gains,
        "gain": None if best is None else gains[best]["gain"],
    }


def _gain(found: dict[str, Any], strong: dict[str, Any]) -> dict[str, Any]:
    """Return a method's scores with its gain over the strongest training of the sources alone, as medians and seed by seed."""
    apart = [a - b for a, b in zip(found["scores"], strong["scores"], strict=True)]
    return {**found, "gain": found["median"] - strong["median"], "gain_by_seed": apart}


def _verdicts(found: list[Any]) -> dict[str, list[Any]] | None:
    """Return by seed whether the method stayed, and its gain at the judging labels; ``None`` for a method without a guard."""
    return None if None in found else {name: [one[name] for one in found] for name in ("on", "gain")}


def _score(trained: AdaptedModel, islands: Islands, settings: AdaptationTerms) -> float:
    """Return the score of a trained model on the target's held rows. For macro-F1 it answers by logits less the log of the classes' shares at the sources."""
    from atoll.labels.evaluators import balanced

    from .adaptation_parties import sources_of

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
