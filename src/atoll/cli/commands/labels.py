"""``atoll labels``: what rows without labels are worth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import FileOptions, Json, output_of, sharing
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError
from atoll.core.extras import need

group = typer.Typer(help="Measure what rows without labels are worth.", no_args_is_help=True)
app.add_typer(group, name="labels", rich_help_panel=EXTRAS)


@group.command("adapt")
@sharing(FileOptions)
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
    *,
    options: FileOptions,
) -> None:
    """Train on labelled domains with and without the rows of another, and compare on its test rows.

    With --unseen, nobody has rows of the target while training, and methods must generalise from the other domains: leave one domain out.
    The baseline is the strongest of trainings of the labelled domains alone: without views, with weak and with strong ones.

    With a guard, the smallest source teaches no label: its labels judge whether SelfTraining, FADE and DANN gain in a domain without labels. One that does
    not is given up for a committee of the sources' trainings, which answers with the weighted mean of their probabilities; the judge's labels weigh them. A single source
    holds out a fifth of its rows instead, and only a large harm at home counts.
    """
    need("torch", "torch", "atoll labels adapt")
    from atoll.study.adaptation import AdaptationTerms, compare_adaptation

    chosen = ("FedSR" if unseen else "SelfTraining") if methods is None else methods
    names = [name for name in chosen.split(",") if name and name != "source"]
    files = [*data, *([target] if target.endswith((".npz", ".csv", ".csv.gz")) and target not in data else [])]
    settings = AdaptationTerms(
        rounds=rounds, lr=rate, steps=steps, seeds=seeds, metric=metric, guard=guard, unseen=unseen
    )
    output = output_of(context)
    given = {"label": label, "text": text, "party": party, "size": size, **options.plain()}
    found = compare_adaptation(files, target, names, settings, tell=output.note, **given)
    output.give(found, _table_of_domains(found))


@group.command("compare")
@sharing(FileOptions)
def labels_compare(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="A name such as mnist, an .npz file with x and y, or a CSV file.", metavar="DATA")
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Methods of atoll.labels, with commas; labelled is the baseline, FedSimCLR+SemiFL pretrains. By default SemiFL, FedSimCLR without labels, ForwardCorrection with wrong ones.",
        ),
    ] = None,
    at: Annotated[str, typer.Option("--at", help="Where labels are: rows, parties, server, classes or none.")] = "rows",
    keep: Annotated[int | None, typer.Option("--keep", help="Labels (or parties, or classes) to keep.", min=1)] = None,
    size: Annotated[int, typer.Option("--size", help="Rows to train on.", min=1)] = 10_000,
    test: Annotated[int, typer.Option("--test", help="Rows to test on.", min=1)] = 2_000,
    wrong: Annotated[float, typer.Option("--wrong", help="Share of wrong labels.")] = 0.0,
    noise: Annotated[str, typer.Option("--noise", help="pair or symmetric.")] = "pair",
    parties: Annotated[
        int | None, typer.Option("--parties", help="Clients; by default 20, without labels 5.", min=1)
    ] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Skew of classes; 0 divides at random.", min=0)] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            help="Rounds of each method; by default 60, with few labels at clients 100, without labels 50.",
            min=1,
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Learning rate of all trainings; by default .03.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Trainings of each method.", min=1)] = 3,
    target: Annotated[str | None, typer.Option("--target", help="Column to predict, for CSV files.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Column of texts, for CSV files.")] = None,
    party: Annotated[str | None, typer.Option("--party", help="Column that names a row's owner.")] = None,
    missing: Annotated[str | None, typer.Option("--missing", help="Value of the label that means none.")] = None,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Hold out a fifth of the labels; give a method up for labelled rows alone if they say that it is worse.",
        ),
    ] = False,
    json: Json = False,
    *,
    options: FileOptions,
) -> None:
    """Train methods with unlabelled rows or wrong labels, and the strongest of labelled rows alone, and compare them seed by seed.

    The baseline has all labelled rows in one place and takes as many steps, without views, with weak and with strong ones; the best of the three counts.
    With --at none, a linear probe on KEEP rows and strong views of them measures the features, beside probes on pixels and on an untrained network without views,
    with weak and with strong ones.

    Data that lack labels need no --keep: their labels stay where they are, and rows are divided at random, or by --party. By default --alpha is .5.
    """
    need("torch", "torch", "atoll labels compare")
    from atoll.study.label_methods import LabelRuns, choose_methods, compare_methods
    from atoll.study.label_rows import PARTY, LabelSetting, rows_of

    if rate is not None and not rate > 0:
        raise ConfigError(f"lr={rate:g}", where="atoll labels compare", remedy="use a rate above 0, such as --lr 0.03")
    setting = LabelSetting(at, keep, size, test, wrong, noise, parties, alpha)
    rows = rows_of(data, target, text, missing, party, options.plain())
    setting, owner = setting.of(rows), PARTY if PARTY in rows else None
    runs = LabelRuns(rows, setting, rounds or setting.usual_rounds, rate, owner, guard)
    output = output_of(context)
    found = compare_methods(runs, choose_methods(methods, setting), seeds, output.note)
    output.give(found, _table_of_methods(found))


@group.command("methods")
def labels_methods(context: typer.Context, json: Json = False) -> None:
    """List the survey's methods: setting, client state, bits of a round, and what is exposed besides parameters."""
    from atoll.labels.survey import survey_rows

    rows = survey_rows()
    table = PlainTable(header_style="bold")
    for name in ("method", "setting", "a client keeps", "bits up", "exposed"):
        table.add_column(name)
    for row in rows:
        name = row["name"] + ("" if row["here"] else f" (to come {row['to_come']})")
        table.add_row(name, row["setting"], row["state"], row["bits_up"], row["exposes"])
    output_of(context).give({"methods": rows}, table)


def _table_of_domains(found: dict[str, Any]) -> PlainTable:
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


def _table_of_methods(found: dict[str, Any]) -> PlainTable:
    table = PlainTable(header_style="bold")
    table.add_column("trained with")
    for name in (found["metric"], "gain", "interval", "coverage", "purity", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("exposed")
    base = found["baseline"]
    table.add_row(base["name"], f"{base['median']:.3f}", *[""] * 6)
    for name, one in found["methods"].items():
        low_high = "" if one["interval"] is None else "{:+.3f} … {:+.3f}".format(*one["interval"])
        shares = ["" if one[what] is None else f"{one[what]:.2f}" for what in ("coverage", "purity")]
        table.add_row(
            name, f"{one['median']:.3f}", f"{one['gain']:+.3f}", low_high, *shares, f"{one['seconds']:.0f}", one["exposes"]
        )  # fmt: skip
    return table
