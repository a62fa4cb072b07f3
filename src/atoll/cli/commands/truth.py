"""``atoll truth``: plan a campaign that finds the truth in reports, play it on a file, and rank its workers."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from atoll.secure import LeaderBoard
    from atoll.truth import CommitteePlan, Reports, TruthModel, TruthPlan, TruthProtocol, TruthResult

group = typer.Typer(
    help="Find the truth in reports that nobody shows, plan how, and rank workers.", no_args_is_help=True
)
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
    pack: Annotated[int, typer.Option("--pack", help="Numbers of a polynomial: shorter shares.", min=1)] = 1,
    trials: Annotated[int, typer.Option("--trials", help="Campaigns to simulate.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Decides who is lost in them.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Compute how likely a campaign and its leader-board end although users vanish, and simulate both."""
    from atoll.truth import plan_committee, plan_truth

    bears = users // 10 if ranking_threshold is None else ranking_threshold
    found = plan_truth(users, threshold, loss, iterations, ranking_threshold=bears, pack=pack, trials=trials, seed=seed)
    committee = None if colluders is None else plan_committee(users, loss, colluders, pack=pack)
    asked = {"users": users, "threshold": threshold, "loss": loss, "iterations": iterations, "ranking_threshold": bears, "pack": pack}  # fmt: skip
    members = {} if committee is None else {"committee": committee.plain()}
    output_of(context).give({**asked, "seed": seed, **found.plain(), **members}, _table(found, committee, pack))


def _table(found: TruthPlan, committee: CommitteePlan | None, pack: int) -> PlainTable:
    table = PlainTable(header_style="bold")
    table.add_column("probability that")
    table.add_column("computed", justify="right")
    table.add_column("simulated", justify="right")
    played = found.simulated
    for what, computed, simulated in (
        ("the campaign ends, by shares", found.success, played.success),
        *((("the campaign ends, by packed shares", found.success_packed, None),) if pack > 1 else ()),
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
    if by == Ranker.groups:
        _require_apart(known, threshold, bound)
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


def _require_apart(scores: Mapping[str, float], threshold: int, most: float) -> None:
    """Refuse scores that differ by less than the unit in which groups count: their order would be one of chance.

    Raises:
        DataError: names two such scores.
    """
    from atoll.core.errors import DataError
    from atoll.core.redaction import private
    from atoll.secure.ranking import RankingTerms

    terms = RankingTerms(tuple(scores), threshold, most)
    best = sorted(scores, key=lambda worker: scores[worker])
    for low, high in itertools.pairwise(best):
        if scores[low] != scores[high] and terms.count_units(scores[low]) == terms.count_units(scores[high]):
            raise DataError(f"the scores of {private(low)} and {private(high)} differ by less than {most / terms.scale:g}, the unit in which groups count", where="truth rank", remedy="use --by helpers, which compares numbers exactly, or subtract from all scores what they have in common")  # fmt: skip


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


# ------------------------------------------------------------------ discover


_MODEL, _PROTOCOL = "dawid-skene", "shamir"

_Least = Annotated[
    int, typer.Option("--min-reporters", help="Withhold tasks on which fewer workers report.", metavar="M", min=0)
]
_Rank = Annotated[
    int,
    typer.Option("--rank", help="Rank the parties at the end; so many colluders learn no number.", metavar="T", min=0),
]
_Pack = Annotated[
    int, typer.Option("--pack", help="Numbers that share a polynomial: shorter letters, fewer colluders.", min=1)
]
_Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="Differential privacy of a worker with all its reports, in all iterations."),
]
_Delta = Annotated[float, typer.Option("--delta", help="With --epsilon: how likely it does not hold.")]
_Clip = Annotated[
    float | None,
    typer.Option("--clip", help="With --epsilon: largest length of what a worker adds in a step."),
]


@group.command("discover")
def discover(
    context: typer.Context,
    labels: Annotated[Path, typer.Argument(help="CSV file task,worker,label, or claims obj,src,value; .gz too.")],
    truth: Annotated[Path | None, typer.Option("--truth", help="CSV file task,truth to compare with.")] = None,
    method: Annotated[
        str, typer.Option("--method", help="Model: dawid-skene, one-coin, crh, …; auto chooses by held-out reports.")
    ] = _MODEL,
    protocol: Annotated[str, typer.Option("--protocol", help="plain, virtual, additive, shamir or masks.")] = _PROTOCOL,
    threshold: Annotated[float, typer.Option("--threshold", help="Share or number of holders that suffice.")] = 0.5,
    committee: Annotated[
        str, typer.Option("--committee", help="Holders drawn by lot: a number, auto, or 0 for all.")
    ] = "0",
    checks: Annotated[
        bool, typer.Option("--checks", help="Holders check all shares, so that cheats are named.")
    ] = False,
    min_reporters: _Least = 0,
    pack: _Pack = 1,
    ranking: _Rank = 0,
    epsilon: _Epsilon = None,
    delta: _Delta = 1e-5,
    clip: _Clip = None,
    loss: Annotated[float, typer.Option("--loss", help="Probability that a party is lost in an iteration.")] = 0.0,
    for_good: Annotated[bool, typer.Option("--for-good", help="Lost parties do not come back.")] = False,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Most iterations.", min=0)] = None,
    site: Annotated[str | None, typer.Option("--site", help="Column that groups workers into sites.")] = None,
    hierarchy: Annotated[Path | None, typer.Option("--hierarchy", help="CSV file ID,name,parentID of claims.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file for task,truth,confidence.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides who is lost.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Play a campaign on a file: every worker, or every site, is a party that shows nobody its reports. Compare with all reports in one place."""
    from atoll.cli.output import require_folder
    from atoll.runs.config import job_class
    from atoll.truth import MajorityVote

    began = time.perf_counter()
    if out is not None:
        require_folder(out)
    parts, whole, repeated, known = _read(labels, site, truth)
    kind: Any = job_class("truth")
    asked: dict[str, Any] = {"loss": loss, "returns": 0.0 if for_good else 1.0, "label": ""}
    asked["protocol"] = _protocol_of(protocol, threshold, committee, loss, checks, min_reporters, pack)
    model, choice = _choose(kind, method, iterations, hierarchy, asked, parts, whole, seed)
    job = kind(model=model, ranking=ranking, **asked, **_public(model, whole), **_noise(epsilon, delta, clip))
    result = _play(job, parts, seed)
    compared = result.compare_plain()
    votes = None if model.values == ("numbers",) else MajorityVote().fit(whole).fitted.by_task()
    found = {
        "tasks": len(whole.tasks), "workers": len(whole.workers), "labels": len(whole), "classes": len(result.fit.layout.classes),
        "repeated": repeated, "method": method, **choice, "protocol": protocol, "iterations": result.iterations,
        **_score(result, known, votes), "agreement": compared.agreement, "max_difference": compared.max_difference,
        **_promised(result), "lost": len(result.lost), "wrong": list(result.wrong), "cheats": list(result.cheats), "bytes_up": result.bytes_up, "bytes_down": result.bytes_down,
        "holders": result.holders[0], "threshold": result.holders[1], "seconds": time.perf_counter() - began,
    }  # fmt: skip
    if out is not None:
        out.write_text(result.csv(), encoding="utf-8")
        found["out"] = str(out)
    output_of(context).give(found, _shown(found))


def _noise(epsilon: float | None, delta: float, clip: float | None) -> dict[str, Any]:
    """The settings of noise.

    Raises:
        ConfigError: there is a clip and no noise.
    """
    from atoll.core.errors import ConfigError

    if epsilon is None and clip is not None:
        raise ConfigError(f"--clip {clip:g} without --epsilon", remedy="give --epsilon, or leave --clip out")
    return {} if epsilon is None else {"epsilon": epsilon, "delta": delta, "clip": clip}


def _promised(result: TruthResult) -> dict[str, Any]:
    """What was withheld, how much noise sums have, and the leader-board."""
    told = result.plain()
    names = ("withheld", "epsilon", "delta", "deviation", "ranking", "unranked")
    return {name: told[name] for name in names if name in told}


def _choose(kind: Any, method: str, iterations: int | None, hierarchy: Path | None, asked: Mapping[str, Any], parts: Mapping[str, Reports], whole: Reports, seed: int) -> tuple[TruthModel, dict[str, Any]]:  # fmt: skip
    """The model of a name; of ``auto``, the one that foretells held-out reports best, and how well each does."""
    if method.lower() != "auto":
        return _model_of(method, iterations, hierarchy), {}
    from atoll.study.truth_models import choose_model, list_candidates
    from atoll.truth import TDH, read_hierarchy

    numbers = not whole.claims and all(map(_is_number, whole.labels)) and len(whole.labels) > _FEW_LABELS
    models = list_candidates("claims" if whole.claims or hierarchy else "numbers" if numbers else "classes", iterations)
    if hierarchy is not None:
        models["tdh"] = TDH(contains=read_hierarchy(hierarchy))
    first = next(iter(models.values()))
    found = choose_model(models, kind(model=first, **asked, **_public(first, whole)), parts, seed=seed)
    told = {"chosen": found.chosen, "held": found.held, "scores": dict(found.scores), "scores_plain": dict(found.plain)}
    return models[found.chosen], told


_FEW_LABELS = 20
"""Different numbers that may still be names of classes, for ``--method auto``."""


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _shown(found: Mapping[str, Any]) -> PlainTable:
    """What a campaign found, for people."""
    table = PlainTable(title=f"{found['method']} by {found['protocol']}")
    for name in ("", ""):
        table.add_column(name)
    for name, value in found.items():
        if value not in (None, []):
            table.add_row(name.replace("_", " "), _word(value))
    return table


def _word(value: Any) -> str:
    """A value of a table; of a long list the first ones."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_word(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:_FIRST])) + (", …" if len(value) > _FIRST else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_FIRST = 5
"""Names of a list that a table has."""


def _read(labels: Path, site: str | None, truth: Path | None) -> tuple[Mapping[str, Reports], Reports, int, Mapping[str, str] | None]:  # fmt: skip
    """The reports of each party and of all, how many were repeated, and the truth of tasks that have reports."""
    from atoll.truth import pool_sites, read_reports, read_sites, read_truth, split_by_worker
    from atoll.truth.reports import name_exact, require_reported

    parts = read_sites(labels, site) if site else None
    whole = pool_sites(parts) if parts else read_reports(labels)
    repeated = sum(one.repeated for one in parts.values()) if parts else whole.repeated
    known = None if truth is None else name_exact(read_truth(truth), whole)
    if known is not None:
        require_reported(whole.tasks, known)
    return parts or split_by_worker(whole), whole, repeated, known


_SHORT = {"vote": "MajorityVote", "mean": "MeanReport", "median": "MedianReport", "sum": "WeightedSum", "d&s": "DawidSkene", "ds": "DawidSkene"}  # fmt: skip
"""What models are called in tables of results."""


def _play(job: Any, parts: Mapping[str, Reports], seed: int) -> TruthResult:
    from atoll.simulation import simulate

    outcome: TruthResult = simulate(job, parts, engine="inline", seed=seed, progress=False).outcome
    return outcome


def _named(kind: str, home: str, word: str, option: str) -> Any:
    """A part by its name, in any case of letters and with hyphens.

    Raises:
        ConfigError: there is none.
    """
    import importlib
    import re

    from atoll.core.errors import ConfigError, nearest
    from atoll.core.rooms import part_names

    module = importlib.import_module(home)
    known = {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): name for name in part_names(kind)}
    plain = {spelt.replace("-", ""): name for spelt, name in known.items()}
    plain |= {short: name for short, name in _SHORT.items() if name in known.values()}
    name = plain.get(word.lower().replace("-", "").replace("_", ""))
    if name is None:
        raise ConfigError(f"{option} {word}.{nearest(word, known)}", remedy=f"use one of {', '.join(sorted(known))}")
    return getattr(module, name)


def _model_of(word: str, iterations: int | None, hierarchy: Path | None) -> TruthModel:
    """The model of a name.

    Raises:
        ConfigError: there is none, or it reads no hierarchy.
    """
    from atoll.core.errors import ConfigError
    from atoll.truth import TDH, read_hierarchy

    kind = _named("truth model", "atoll.truth", word, "--method")
    more: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
    if hierarchy is not None and kind is not TDH:
        raise ConfigError(f"--hierarchy with --method {word}", remedy="use --method tdh, or leave --hierarchy out")
    if hierarchy is not None:
        more["contains"] = read_hierarchy(hierarchy)
    model: TruthModel = kind(**more)
    return model


def _protocol_of(word: str, threshold: float, committee: str, loss: float, checks: bool, min_reporters: int, pack: int) -> TruthProtocol:  # fmt: skip
    """The protocol of a name; the loss that is played is the one that an ``auto`` committee is planned for.

    Raises:
        ConfigError: there is none.
    """
    from atoll.core.errors import ConfigError
    from atoll.truth import Masks, PlainReplies, Shamir, Virtual

    kind = PlainReplies if word.lower() == "plain" else _named("truth protocol", "atoll.truth", word, "--protocol")
    if committee != "auto" and not committee.isdecimal():
        raise ConfigError(f"--committee {committee}", remedy="write --committee auto, a number, or 0 for all")
    if committee != "0" and kind not in (Shamir, Virtual):
        raise ConfigError(f"--committee {committee} with --protocol {word}", remedy="use --protocol shamir or virtual, or leave --committee out")  # fmt: skip
    if checks and kind is not Shamir:
        raise ConfigError(f"--checks with --protocol {word}", remedy="use --protocol shamir, or leave --checks out")
    if min_reporters and kind is not Shamir:
        raise ConfigError(f"--min-reporters {min_reporters} with --protocol {word}, which compares nothing under shares", remedy="use --protocol shamir, or leave --min-reporters out")  # fmt: skip
    if pack > 1 and kind not in (Shamir, Virtual):
        raise ConfigError(f"--pack {pack} with --protocol {word}", remedy="use --protocol shamir or virtual, or leave --pack out")  # fmt: skip
    if kind is Masks:
        return Masks(threshold=threshold)
    members = committee if committee == "auto" else int(committee)
    shares = Shamir(threshold=threshold, committee=members, loss=loss or 0.05, checks=checks, min_reporters=min_reporters, pack=pack)  # fmt: skip
    if kind is Virtual:
        return Virtual(of=shares)
    if kind is Shamir:
        return shares
    made: TruthProtocol = kind()
    return made


def _public(model: TruthModel, whole: Reports) -> dict[str, Any]:
    """What whoever asks for the reports knows beforehand: the tasks, and what may be the truth of each."""
    values = "numbers" if model.values == ("numbers",) else "claims" if whole.claims or model.values[0] == "claims" else "classes"  # fmt: skip
    layout = whole.layout(values)  # type: ignore[arg-type]
    if values == "claims":
        return {"candidates": {task: list(layout.names_of(place)) for place, task in enumerate(layout.tasks)}}
    if values == "numbers":
        return {"tasks": layout.tasks, "low": layout.low, "high": layout.high}
    return {"tasks": layout.tasks, "classes": layout.classes}


def _score(result: TruthResult, known: Mapping[str, str] | None, votes: Any) -> dict[str, float | None]:
    """How good the truth is: of labels the accuracy, beside that of the vote; of numbers the mean absolute error and the correlation. Tasks that are withheld do not count."""
    from atoll.core.errors import DataError
    from atoll.truth import score_labels

    none: dict[str, float | None] = dict.fromkeys(("accuracy", "majority", "mae", "pearson"))
    shown = {task: value for task, value in (known or {}).items() if task in result.truth}
    if not shown:
        return none
    if votes is not None:
        return {**none, "accuracy": score_labels(result.fit.by_task(), shown), "majority": score_labels(votes, shown)}
    try:
        pairs = [(float(result.truth[task]), float(value)) for task, value in shown.items()]
    except ValueError:
        raise DataError("a truth is no number", where="--truth", remedy="give numbers for numbers, or use a model of classes") from None  # fmt: skip
    far = [found - true for found, true in pairs]
    middles = [math.fsum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    apart = [(found - middles[0], true - middles[1]) for found, true in pairs]
    size = math.sqrt(math.fsum(a * a for a, _ in apart) * math.fsum(b * b for _, b in apart))
    return {**none, "mae": math.fsum(map(abs, far)) / len(far), "pearson": math.fsum(a * b for a, b in apart) / size if size else None}  # fmt: skip
