"""``atoll labels adapt``: what the rows of a domain without labels are worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.core.extras import need

from ..arguments import Json, output_of
from ..output import PlainTable
from .compare import told_in_turn
from .rows import as_floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import Dataset, Islands

    from .adaptation_runs import AdaptationTerms, AdaptedModel

__all__ = ["adapted", "domains_of", "labels_adapt", "macro_f1"]


# What adaptation gains: methods between domains beside labelled rows of the sources alone. ``atoll labels adapt`` shows it.


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

    from .adaptation_runs import sources_of

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


def labels_adapt(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Argument(
            help="A name, archive or table with a column of domains, or one file a domain.", metavar="DATA…"
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target", help="The domain without labels: its name or file, or each in turn.", metavar="F|each"
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="SelfTraining (the default), FADE, DANN, EfficientFDA, FADA, DualAdapt or FRuDA, with commas; FedSR with --unseen.",
            metavar="NAMES",
        ),
    ] = None,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="No training has a row of the target: generalisation, not adaptation.")
    ] = False,
    party: Annotated[str | None, typer.Option("--party", help="Column that names the domain of a row.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column to predict, for tables.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Column of texts, for tables.")] = None,
    size: Annotated[
        int | None, typer.Option("--size", help="Training rows of each file, drawn by seed; all by default.", min=1)
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="accuracy or macro_f1.")] = "accuracy",
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of each training.", min=1)] = 60,
    steps: Annotated[int, typer.Option("--steps", help="Local steps of a round.", min=1)] = 24,
    rate: Annotated[float, typer.Option("--lr", help="Learning rate, with a cosine schedule.")] = 0.03,
    seeds: Annotated[int, typer.Option("--seeds", help="Trainings of each method.", min=1)] = 3,
    guard: Annotated[
        bool | None,
        typer.Option(
            "--guard/--no-guard",
            help="Fall back to a committee of the sources' trainings if labels that no training sees do not gain; by default with two sources.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train on labelled domains with and without the rows of another, and compare on its test rows.

    With --unseen, nobody has rows of the target while training, and methods must generalise from the other domains: leave one domain out.
    The baseline is the strongest of trainings of the labelled domains alone: without views, with weak and with strong ones.

    With a guard, the smallest source teaches no label: its labels judge whether SelfTraining, FADE and DANN gain in a domain without labels. One that does
    not is given up for a committee of the sources' trainings, which answers with the weighted mean of their probabilities; the judge's labels weigh them. A single source
    holds out a fifth of its rows instead, and only a large harm at home counts.
    """
    need("torch", "torch", "atoll labels adapt")
    from .adaptation_runs import AdaptationTerms

    chosen = ("FedSR" if unseen else "SelfTraining") if methods is None else methods
    names = [name for name in chosen.split(",") if name and name != "source"]
    files = [*data, *([target] if target.endswith((".npz", ".csv", ".csv.gz")) and target not in data else [])]
    settings = AdaptationTerms(
        rounds=rounds, lr=rate, steps=steps, seeds=seeds, metric=metric, guard=guard, unseen=unseen
    )
    output = output_of(context)
    given = {"label": label, "text": text, "party": party, "size": size}
    found = adapted(files, target, names, settings, tell=output.note, **given)
    output.give(found, _make_table(found))


def _make_table(found: dict[str, Any]) -> PlainTable:
    table = PlainTable()
    table.add_column("target")
    table.add_column("trained with")
    table.add_column(found["metric"], justify="right")
    table.add_column("gain", justify="right")
    table.add_column("guard")
    for name, one in found["targets"].items():
        for views, run in one["source"].items():
            table.add_row(name, f"the sources alone, views: {views}", f"{run['median']:.3f}", "", "")
        if committee := one["fallback"]:
            table.add_row(name, "their committee", f"{committee['median']:.3f}", f"{committee['gain']:+.3f}", "")
        for method, run in one["adapted"].items():
            stayed = (
                "none" if run["guard"] is None else f"{sum(run['guard']['on'])} of {len(run['guard']['on'])} stayed"
            )
            table.add_row(name, method, f"{run['median']:.3f}", f"{run['gain']:+.3f}", stayed)
    return table
