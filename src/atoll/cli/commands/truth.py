"""``atoll truth``: plan a campaign that finds the truth in reports, and rank its workers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from atoll.secure import LeaderBoard
    from atoll.truth import CommitteePlan, TruthPlan

group = typer.Typer(help="Plan a campaign that finds the truth in reports, and rank its workers.", no_args_is_help=True)
app.add_typer(group, name="truth", rich_help_panel=ANALYSE)


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


class Ranker(StrEnum):
    """Who ranks."""

    groups = "groups"
    helpers = "helpers"


@group.command("rank")
def rank(
    context: typer.Context,
    scores: Annotated[
        Path, typer.Argument(help="A CSV file with the columns worker, score.", exists=True, dir_okay=False)
    ],
    threshold: Annotated[
        int,
        typer.Option(
            "--threshold",
            help="Colluders that learn no score; 2 T + 1 groups share the workers among them.",
            metavar="T",
            min=1,
        ),
    ] = 1,
    most: Annotated[
        float | None,
        typer.Option(
            "--most",
            help="The largest score that there can be, which everyone knows. By default 1, or the largest one of the file.",
        ),
    ] = None,
    by: Annotated[
        Ranker,
        typer.Option(
            "--by", help="groups: the workers themselves, through a server. helpers: a sort among three helpers."
        ),
    ] = Ranker.groups,
    seed: Annotated[int, typer.Option("--seed", help="Decides who acts for a group.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Simulate a leader-board: order workers by scores that they do not show, and tell what the server sees."""
    from atoll.truth import read_scores

    known = read_scores(scores)
    bound = max(1.0, *known.values()) if most is None else most
    board = _rank(list(known.values()), threshold, bound, by, seed)
    names = dict(zip((f"client-{i}" for i in range(len(known))), known, strict=True))
    order = [names[name] for name in board.order]
    seen = {names[name]: board.seen[name] for name in board.order if name in board.seen}
    terms: dict[str, Any] = {"threshold": threshold, "most": bound} if by == Ranker.groups else {}
    table = PlainTable(header_style="bold")
    for column in ("place", "worker", "what the server sees"):
        table.add_column(column, justify="right" if column != "worker" else "left")
    for place, worker in enumerate(order, 1):
        table.add_row(str(place), worker, str(seen.get(worker, "its place alone")))
    output_of(context).give({"workers": len(known), "by": by.value, **terms, "order": order, "seen_by_server": seen}, table)  # fmt: skip


def _rank(scores: list[float], threshold: int, most: float, by: Ranker, seed: int) -> LeaderBoard:
    """Play the protocol: every score is a party of its own."""
    from atoll.core import Community
    from atoll.secure import rank_by_sorting, rank_parties
    from atoll.simulation import simulate

    helpers = [f"helper-{i}" for i in (1, 2, 3)]

    async def program(fed: Any) -> LeaderBoard:
        if by == Ranker.groups:
            return await rank_parties(fed, fed.parties, threshold, at=0, most=most)
        return await rank_by_sorting(fed, fed.parties, helpers, at=0)

    others = dict.fromkeys(helpers) if by == Ranker.helpers else {}
    board: LeaderBoard = simulate(program, Community(scores, others), engine="inline", seed=seed, progress=False)
    return board
