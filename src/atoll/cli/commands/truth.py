"""``atoll truth``: plan a campaign that finds the truth in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from atoll.truth import CommitteePlan, TruthPlan

group = typer.Typer(help="Plan a campaign that finds the truth in reports.", no_args_is_help=True)
app.add_typer(group, name="truth", rich_help_panel=ANALYSE)


@group.callback()
def truth() -> None:
    """Plan a campaign that finds the truth in reports."""  # a group of one command would lose its name


@group.command("plan")
def plan(
    context: typer.Context,
    users: Annotated[int, typer.Option("--users", help="Number of users.", min=1)],
    threshold: Annotated[int, typer.Option("--threshold", help="Users whose sums give the result.", min=1)],
    loss: Annotated[float, typer.Option("--loss", help="Probability that a connection is lost, for good.")] = 0.05,
    iterations: Annotated[int, typer.Option("--iterations", help="Iterations of the campaign.", min=1)] = 10,
    ranking_threshold: Annotated[
        int | None,
        typer.Option(
            "--ranking-threshold",
            help="Colluders that the leader-board bears; it needs 2 T + 1 groups. By default a tenth of the users.",
            metavar="T",
            min=0,
        ),
    ] = None,
    colluders: Annotated[
        float | None,
        typer.Option("--colluders", help="Share of the users that may collude: plans a committee for one iteration."),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="Campaigns to simulate.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Decides who is lost in them.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Compute how likely a campaign and its leader-board end although users vanish, and simulate both."""
    from atoll.truth import plan_committee, plan_truth

    bears = users // 10 if ranking_threshold is None else ranking_threshold
    found = plan_truth(users, threshold, loss, iterations, ranking_threshold=bears, trials=trials, seed=seed)
    committee = None if colluders is None else plan_committee(users, loss, colluders)
    asked = {"users": users, "threshold": threshold, "loss": loss, "iterations": iterations, "ranking_threshold": bears}
    members = {} if committee is None else {"committee": committee.plain()}
    output_of(context).give({**asked, "seed": seed, **found.plain(), **members}, _table(found, committee))


def _table(found: TruthPlan, committee: CommitteePlan | None) -> PlainTable:
    table = PlainTable(header_style="bold")
    table.add_column("probability that")
    table.add_column("computed", justify="right")
    table.add_column("simulated", justify="right")
    played = found.simulated
    for what, computed, simulated in (
        ("the campaign ends, by shares", found.success, played.success),
        ("the campaign ends, by masks", found.success_masks, played.success_masks),
        ("the leader-board fails", found.ranking_failure, played.ranking_failure),
        ("  at most, by Theorem 5.3", found.ranking_bound, None),
        ("its rival without stand-ins fails", found.ranking_rival, played.ranking_rival),
    ):
        table.add_row(what, f"{computed:.5f}", "" if simulated is None else f"{simulated:.5f}")
    if committee is not None:
        table.add_row(f"a committee of {committee.members} with threshold {committee.threshold} is exposed", f"{committee.exposed:.1e}")  # fmt: skip
        table.add_row("  has to begin again", f"{committee.stuck:.1e}")
    return table
