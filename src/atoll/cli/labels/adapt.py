"""``atoll labels adapt``: what the rows of a domain without labels are worth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from atoll.core.extras import need

from ..arguments import Json, output_of
from ..output import PlainTable

__all__ = ["labels_adapt"]


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
    from .adapted import adapted

    chosen = ("FedSR" if unseen else "SelfTraining") if methods is None else methods
    names = [name for name in chosen.split(",") if name and name != "source"]
    files = [*data, *([target] if target.endswith((".npz", ".csv", ".csv.gz")) and target not in data else [])]
    settings = AdaptationTerms(
        rounds=rounds, lr=rate, steps=steps, seeds=seeds, metric=metric, guard=guard, unseen=unseen
    )
    output = output_of(context)
    given = {"label": label, "text": text, "party": party, "size": size}
    found = adapted(files, target, names, settings, tell=output.note, **given)
    output.give(found, _table(found))


def _table(found: dict[str, Any]) -> PlainTable:
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
