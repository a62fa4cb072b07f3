"""``atoll ensemble``: small models of clusters of users, joined into one, against one model of all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import FileOptions, Json, output_of, sharing
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import DataTable, Islands
    from atoll.ensemble import ClusterRule
    from atoll.study import EnsembleArms

_AUTO = (1, 2, 4, 8)
"""Numbers of leaves among which ``auto`` chooses."""
_ARMS = ("baseline", "wide", "opt_in_alone", "mean", "median", "max", "weights", "over_arch", "gate", "own_leaf")


Data = Annotated[Path, typer.Argument(help="Rows of all users: CSV or Parquet.", metavar="DATA")]
User = Annotated[str, typer.Option("--user", help="Column that names a row's user.")]
Label = Annotated[str, typer.Option("--label", help="Column of classes to predict.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="Whose users train one leaf: a column, which is then no input; random:C; kmeans:C of the users' mean inputs, or kmeans:C:COLUMN,… of columns that are then no inputs. With auto for C, opt-in users judge 1, 2, 4 and 8 leaves; wide is then as wide as the most of them.",
        metavar="COLUMN|random:C|kmeans:C|kmeans:auto",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", help="Rounds of every training.", min=1)]
Width = Annotated[int, typer.Option("--width", help="Width of a leaf's hidden layer.", min=1)]
Rate = Annotated[float, typer.Option("--rate", help="Local learning rate.")]
Batch = Annotated[int, typer.Option("--batch", help="Rows of a local step.", min=1)]
OptIn = Annotated[
    float,
    typer.Option("--opt-in", help="Share of the users that give their labels to the server.", min=0, max=0.99),
]
Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="Differential privacy of each user, of the leaves together.", show_default=False),
]
Delta = Annotated[float, typer.Option("--delta", help="With --epsilon: the probability that it fails.")]
Clip = Annotated[float, typer.Option("--clip", help="With --epsilon: largest norm of a user's update.")]
Test = Annotated[float, typer.Option("--test", help="Share of each user's rows held out.", min=0.01, max=0.9)]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="Columns to leave out; repeat it for several.")]
Seed = Annotated[int, typer.Option("--seed", help="Decides what is drawn.", min=0)]
Seeds = Annotated[
    int,
    typer.Option("--seeds", help="Trainings of each arm, with seeds from --seed on; with several, intervals.", min=1),
]

Html = Annotated[Path | None, typer.Option("--html", help="Write a page with tables and pictures.", metavar="FILE")]


@app.command("ensemble", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    data: Data,
    user: User = "user",
    label: Label = "label",
    cluster: Cluster = "random:4",
    rounds: Rounds = 30,
    width: Width = 4,
    rate: Rate = 0.3,
    batch: Batch = 10,
    opt_in: OptIn = 0.1,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    clip: Clip = 1.0,
    test: Test = 0.25,
    drop: Drop = None,
    seed: Seed = 0,
    seeds: Seeds = 1,
    html: Html = None,
    options: FileOptions = FileOptions(),  # noqa: B008 - settings
    json: Json = False,
) -> int:
    """Train a small model for each cluster of users, join them, and compare with one model of all."""
    from atoll.algorithms import FedAvg
    from atoll.data import DataTable
    from atoll.mechanisms import CentralDP
    from atoll.models import mlp
    from atoll.runs.config import job_class
    from atoll.study import compare_ensemble

    table = DataTable.read(data, drop=drop or (), text=[user], **options.plain())
    rule, aside, automatic = _rule_of(cluster, table, (user, label), seed)
    islands = _islands_of(table, user, label, aside, (test, seed))
    features, classes = len(islands.about.features), max(2, islands.classes or 2)
    privacy = None if epsilon is None else CentralDP(epsilon=epsilon, delta=delta, clip=clip)
    training: Any = job_class("training")
    leaf = training(
        model=mlp(features, classes, (width,)),
        algorithm=FedAvg(lr=rate, batch_size=batch),
        rounds=rounds,
        privacy=privacy,
    )
    job = _job_of(rule, leaf, opt_in, seed, automatic)
    leaves = job.prepare(islands).most_leaves
    found = compare_ensemble(
        job,
        islands,
        mlp(features, classes, (width * leaves,)),
        seeds=range(seed, seed + seeds),
        parallel=1 if seeds == 1 else None,
        tell=lambda line: None,
    )
    told = _scores_of(found, several=seeds > 1)
    told |= {"leaves": found.search.get("clusters", leaves), "users": len(islands), "opt_in": found.opt_in}
    told |= {"search": dict(found.search)} if automatic else {}
    told["left_out"] = _split_columns(table, (user, label, *aside))[0]
    if html is not None:
        output_of(context).note(f"Page: {found.report(html)}")
    output_of(context).give(told, _table(found, told["left_out"]))
    return 0


def _job_of(rule: ClusterRule, leaf: Any, opt_in: float, seed: int, automatic: bool) -> Any:
    """Return the ensemble of these leaves, which chooses their number itself if that is automatic."""
    from atoll.ensemble import Search
    from atoll.runs.config import job_class

    kind: Any = job_class("ensemble")
    search = Search(clusters=_AUTO) if automatic else None
    aggregate = "gate" if opt_in else "over_arch"
    return kind(clusters=rule, leaf=leaf, opt_in=opt_in, aggregate=aggregate, seed=seed, search=search)


def _scores_of(found: Any, *, several: bool) -> dict[str, Any]:
    """Return the scores of all arms, the epsilon, and differences with intervals if there are several seeds."""
    told: dict[str, Any] = {name: found.scores[name] for name in _ARMS if name in found.scores}
    told |= {"epsilon": dict(found.epsilon), "parameters": found.parameters}
    if several:
        told["differences"] = {
            one.group: {"auc": one.mean, "low": one.low, "high": one.high, "p": one.p} for one in found.differences()
        }
    return told


def _rule_of(
    said: str, table: DataTable, besides: tuple[str, str], seed: int
) -> tuple[ClusterRule, tuple[str, ...], bool]:
    """Return the rule, the columns that are then no inputs, and whether the number of leaves is to be chosen.

    Raises:
        ConfigError: the text says no rule.
        CompositionError: it names the label.
    """
    from atoll.core.errors import CompositionError, ConfigError, nearest
    from atoll.ensemble import AttributeClusters, CentroidClusters, RandomClusters

    if said == besides[1]:
        raise CompositionError(
            f"--cluster {said!r} is the label, which is private",
            remedy="cluster by a public column, or by random:4",
        )
    if said in table:
        return AttributeClusters(_stored(said)), (said,), False
    kind, _, rest = said.partition(":")
    count, _, names = rest.partition(":")
    automatic = count == "auto"
    if kind not in ("random", "kmeans") or not (automatic or count.isdecimal()) or (names and kind == "random"):
        raise ConfigError(
            f"--cluster {said!r} is no column.{nearest(said, table.columns)}",
            remedy="name a column, or use random:4, kmeans:4, kmeans:auto or kmeans:4:age,city",
        )
    leaves = 1 if automatic else int(count)
    if kind == "random":
        return RandomClusters(leaves, seed=seed), (), automatic
    own = tuple(name for name in names.split(",") if name)
    if besides[1] in own:
        raise CompositionError(
            f"--cluster {said!r} names the label, which is private",
            remedy="cluster by public columns, or by random:4",
        )
    columns = [_stored(name) for name in own or _split_columns(table, besides)[1]]
    return CentroidClusters(leaves, columns, seed=seed), own, automatic


def _stored(name: str) -> str:
    """Return what a public column is called among the columns of a client's rows, some of which have names of their own."""
    return f"column {name}" if name in ("x", "y", "user", "labelled") else name


def _split_columns(table: DataTable, besides: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the columns of words, which are no inputs, and those of numbers."""
    rest = [name for name in table.columns if name not in besides]
    return [name for name in rest if table[name].dtype.kind not in "biuf"], [
        name for name in rest if table[name].dtype.kind in "biuf"
    ]


def _islands_of(table: DataTable, user: str, label: str, aside: tuple[str, ...], split: tuple[float, int]) -> Islands:
    """Return a client for each user, with inputs of mean 0 and deviation 1, and test rows of all users.

    Raises:
        DataError: a column misses values, none is left, labels are of one class, or no row is held out.
    """
    from atoll.core.algebra.rng import Rng
    from atoll.core.errors import DataError
    from atoll.data import Dataset, Islands

    _, names = _split_columns(table, (user, label, *aside))
    for name in (*names, user, label, *aside):
        if _misses_values(table[name]):
            drop = f"leave it out with --drop {name}, or " if name in names else "leave such rows out, or "
            raise DataError(
                f"column {name!r} has missing values",
                where=table.name,
                remedy=f"{drop}fill them in",
            )
    if not names:
        raise DataError(
            "no column is left as an input",
            where=table.name,
            remedy="give columns of numbers besides user, label and cluster",
        )
    x = np.stack([table[name].astype(np.float64) for name in names], axis=1)
    spread = x.std(0)
    x = ((x - x.mean(0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    levels, y = np.unique(table[label], return_inverse=True)
    if len(levels) < 2 or len(levels) > max(20, len(y) // 20):
        raise DataError(
            f"column {label!r} has {len(levels)} values, and they are to be classes",
            where=table.name,
            remedy="name a column of classes with --label",
        )
    who = table[user].astype(str)
    held = np.zeros(len(y), bool)
    for name in np.unique(who):
        rows = np.flatnonzero(who == name)
        drawn = Rng.of(split[1]).child("test").child(str(name)).generator().permutation(rows)
        held[drawn[: int(split[0] * len(rows))]] = True
    if not held.any():
        raise DataError(
            f"--test {split[0]:g} of each user's rows is no row, for the most that a user has is {int(np.unique(who, return_counts=True)[1].max())}",
            where=table.name,
            remedy="give users several rows each, or a larger --test",
        )
    about: dict[str, Any] = {
        "features": [_stored(name) for name in names],
        "labels": [str(one) for one in levels],
        "task": "classification",
        "name": table.name,
    }
    columns = {"x": x, "y": y.astype(np.int64), "user": who, **{_stored(name): table[name] for name in aside}}

    def cut(rows: Any) -> Dataset:
        return Dataset({name: values[rows] for name, values in columns.items()}, **about)

    parts = {str(name): cut(np.flatnonzero((who == name) & ~held)) for name in np.unique(who)}
    return Islands.from_datasets(parts, test=cut(np.flatnonzero(held)))


def _misses_values(values: NDArray[Any]) -> bool:
    """Return whether a number is not finite, or a word is empty."""
    if values.dtype.kind in "biuf":
        return not bool(np.isfinite(values.astype(np.float64)).all())
    return any(str(one).strip() == "" or one != one for one in values.tolist())


def _table(found: EnsembleArms, left_out: list[str]) -> PlainTable:
    from atoll.report.groups import shown_difference

    table = PlainTable(header_style="bold")
    table.add_column("arm")
    for name in ("AUC", "accuracy", "AUC against baseline"):
        table.add_column(name, justify="right")
    against = {one.group: one for one in found.differences()}
    for name in _ARMS:
        if name in found.scores:
            one = found.scores[name]
            more = shown_difference(against[name]) if name in against else ""
            table.add_row(name, f"{one['auc']:.4f}", f"{one['accuracy']:.4f}", more)
    if found.epsilon["total"] is not None:
        table.add_row("epsilon of a user", f"{found.epsilon['total']:.4g}", "", "")
    if found.search:
        table.add_row(str(found.search["why"]), "", "", "")
    if left_out:
        table.add_row(f"no inputs, for they hold words: {', '.join(left_out)}", "", "", "")
    return table
