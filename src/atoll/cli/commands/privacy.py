"""``atoll privacy``: the epsilon of a mechanism, the noise that an epsilon needs, and the audit of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of, sharing
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.data import Islands
    from atoll.privacy import LedgerAccount, NoisePlan, StatementEntry

__all__ = ["privacy_audit", "privacy_ledger", "privacy_study"]


# ``atoll privacy audit``: a training with canaries, and the epsilon that they prove.


_USERS = 100


def privacy_audit(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon that the training claims.", metavar="E")],
    canaries: Annotated[int, typer.Option("--canaries", help="Users that a coin lets in.", metavar="M", min=2)] = 1000,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Arrays x and y of the other users' data, an .npz file; by default the digits.",
            metavar="FILE.npz",
        ),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the claim, in (0, 1).")] = 1e-5,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the lower bound.")] = 0.95,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of the training.", min=1)] = 2,
    sabotage: Annotated[
        float, typer.Option("--sabotage", help="Multiply the noise by F behind the ledger's back.", metavar="F")
    ] = 1.0,
    tradeoff: Annotated[
        str,
        typer.Option(
            "--tradeoff",
            help="What is refuted: one (epsilon, delta): approximate; or Gaussian noise, with a tighter bound: gaussian.",
            metavar="CURVE",
        ),
    ] = "approximate",
    guesses: Annotated[
        int | None,
        typer.Option("--guesses", help="Guess so many coins, the surest; by default half of them.", metavar="R", min=1),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep the run there; `atoll report` shows the audit.")
    ] = None,
    json: Json = False,
) -> None:
    """Train with canaries, guess which took part, and prove a lower bound of epsilon."""
    from atoll.auditing import Canaries, audit
    from atoll.auditing.run import central

    settings = Canaries(count=canaries, guesses=guesses, confidence=confidence, tradeoff=tradeoff)  # type: ignore[arg-type]
    found = audit(
        lambda planted: central(planted, epsilon, delta, rounds, sabotage),
        _load_users(data),
        settings,
        delta=delta,
        folder=folder,
    )
    plan = {"rounds": rounds, "sabotage": sabotage}
    terms = f"Unit {found.unit}, neighbours {found.neighbours}, adversary: {found.adversary}."
    output_of(context).give({**found.plain(), **plan}, f"{found.verdict}\n{terms}")


def _load_users(path: Path | None) -> Islands:
    """The users that are there anyway."""
    import atoll.data

    rows = atoll.data.digits() if path is None else atoll.data.read_npz(path, flat=True)
    return atoll.data.iid(rows, parties=min(_USERS, len(rows)), seed=0)


# ``atoll privacy study``: accuracy against epsilon over one data set.


def privacy_study(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="Arrays x and y, an .npz file; or the name of a bundled data set.", metavar="DATA")
    ] = "digits",
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="An epsilon; repeat it for several.", metavar="E")
    ] = None,
    mechanism: Annotated[
        list[str] | None, typer.Option("--mechanism", help="A mechanism; repeat it; by default all.", metavar="NAME")
    ] = None,
    parties: Annotated[int, typer.Option("--parties", help="Clients that the rows are dealt to.", min=2)] = 20,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of each training.", min=1)] = 10,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each training.", min=1)] = 2,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the claims, in (0, 1).")] = 1e-5,
    clip: Annotated[float, typer.Option("--clip", help="The clip of every mechanism.")] = 1.0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a page with the plot.", metavar="FILE.html")
    ] = None,
    json: Json = False,
) -> None:
    """Train with each mechanism at each epsilon, and show what privacy costs in accuracy."""
    import atoll.data
    from atoll.core.errors import ConfigError
    from atoll.study import privacy_cost

    if data.endswith(".npz"):
        rows = atoll.data.read_npz(Path(data), flat=True)
    elif data in _BUNDLED:
        rows = getattr(atoll.data, data)()
    else:
        raise ConfigError(
            f"DATA {data!r}", where="atoll privacy study", remedy=f"use a file .npz, or one of {', '.join(_BUNDLED)}"
        )
    chosen = {"parties": parties, "rounds": rounds, "seeds": seeds, "delta": delta, "clip": clip}
    found = privacy_cost(rows, epsilon or (1.0, 4.0, 16.0), mechanism or (), **chosen)  # type: ignore[arg-type]
    written = {} if report is None else {"report": str(found.report(report))}
    tail = f"\nThe plot is in {report}" if report is not None else ""
    output_of(context).give({**found.plain(), **written}, f"{found}{tail}")


_BUNDLED = ("digits", "iris")


# ``atoll privacy ledger``: what each party has spent, by which job, and what is left of its budget.


_SHOWN = 3
"""Parties of a row that are named."""


def privacy_ledger(
    context: typer.Context,
    place: Annotated[
        Path,
        typer.Argument(
            help="A kit, or a folder: of a site, a server, a run, a sweep; or a ledger file.", metavar="FOLDER|KIT"
        ),
    ] = Path(),
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="With a kit: the folder of its process; by default ./NAME.", metavar="FOLDER"),
    ] = None,
    delta: Annotated[
        float, typer.Option("--delta", help="Delta, in (0, 1); a party with a budget is counted at the budget's.")
    ] = 1e-5,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="Neighbours: add-remove or replace-one.")
    ] = "add-remove",
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Only this unit: example, user or island; by default all that are protected."),
    ] = None,
    records: Annotated[
        int, typer.Option("--records", help="Units that belong together, such as one person's rows.", min=1)
    ] = 1,
    by: Annotated[
        str | None,
        typer.Option("--by", help="analyst: what each analyst's answers with noise have spent.", metavar="analyst"),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", help="An earlier end of the ledger: is it still there?", metavar="NUMBER:HASH"),
    ] = None,
    json: Json = False,
) -> None:
    """Show what each party has spent, of which unit, against whom, by which job, and what is left of its budget."""
    from atoll.core.event import Ledger
    from atoll.privacy import statement
    from atoll.runs.spending import account_of, ledgers_of

    if by is not None:
        _give_by_analyst(output_of(context), _choose_folder(place, folder), by)
        return
    found = ledgers_of(_choose_folder(place, folder))
    if not found:
        raise ConfigError(
            f"there is no privacy ledger in {str(place)!r}",
            where="FOLDER|KIT",
            remedy="name a folder in which something was released: of a site, a server, a run or a sweep",
        )
    heads = {str(path): Ledger(path, readable=True) for _, path in found}
    if head is not None:
        for one in heads.values():
            one.require_head(head)
    account = account_of(found)
    entries = statement(account, delta, adjacency, unit=unit, records=records)
    _give_entries(output_of(context), entries, account, heads, records)


def _give_entries(output: Any, entries: Any, account: Any, heads: dict[str, Any], records: int) -> None:
    """Show what was spent, and each party's rest."""
    told = {
        "ledgers": {path: one.head for path, one in heads.items()},
        "entries": [entry.packed() for entry in entries],
        "jobs": account.names,
        "notes": sorted(account.notes),
        "records": records,
    }
    output.give(told, _make_table(entries, account))
    for line in _describe_parties(entries, account, heads):
        output.say(line)


def _give_by_analyst(output: Any, folder: Path, by: str) -> None:
    """Show what each analyst's answers with noise have spent at each site, from the sites' own records."""
    from atoll.core.persistence.named_results import NamedResults
    from atoll.query.strategies.releases import RECORD

    if by != "analyst":
        raise ConfigError(f"--by {by}", remedy="write --by analyst")
    kept = NamedResults(folder / "results" if (folder / "results").is_dir() else folder)
    spent: dict[tuple[str, str], list[float]] = {}
    for one in kept.all():
        for answer in kept.get(one.party, RECORD)["answers"] if one.name == RECORD else ():
            total = spent.setdefault((one.party, str(answer["analyst"])), [0, 0.0, 0.0])
            for k, value in enumerate(
                (float(answer["epsilon"] > 0 or answer["delta"] > 0), float(answer["epsilon"]), float(answer["delta"]))
            ):
                total[k] += value
    rows = [{"site": site, "analyst": who, "releases": int(n), "epsilon": epsilon, "delta": delta} for (site, who), (n, epsilon, delta) in sorted(spent.items())]  # fmt: skip
    table = PlainTable(header_style="bold")
    for name in ("site", "analyst", "releases", "epsilon", "delta"):
        table.add_column(name)
    for row in rows:
        table.add_row(str(row["site"]), str(row["analyst"]), str(row["releases"]), f"{row['epsilon']:.4g}", f"{row['delta']:.4g}")  # fmt: skip
    output.give({"analysts": rows}, table)


def _choose_folder(place: Path, folder: Path | None) -> Path:
    """The folder that is meant by a kit, or the folder itself."""
    if not (place / "kit.yaml").is_file():
        return place
    from atoll.runtime.provision import Kit

    return folder or Path(Kit.read(place).name)


def _make_table(entries: Sequence[StatementEntry], account: LedgerAccount) -> PlainTable:
    """Parties that are alike share a row; the rows below it are its jobs, each alone."""
    table = PlainTable(header_style="bold")
    budgets = any(entry.budget is not None for entry in entries)
    for name in ("party", "unit", "against"):
        table.add_column(name)
    for name in ("epsilon (pld)", "epsilon (rdp)", "delta", "releases", *(("budget", "left") if budgets else ())):
        table.add_column(name, justify="right")
    alike: dict[_Key, list[str]] = {}
    for entry in entries:
        alike.setdefault(_Key(replace(entry, party="")), []).append(entry.party)
    for key, parties in alike.items():
        entry = key.entry
        more = (_format_number(entry.budget), _format_number(entry.left)) if budgets else ()
        table.add_row(
            _list_names(parties), entry.unit, ", ".join(entry.adversaries), _format_number(entry.spent.pld), _format_number(entry.spent.rdp),
            f"{entry.delta:g}", str(entry.releases), *more,
        )  # fmt: skip
        for job, cost in entry.jobs.items():
            name = f"{job} ({account.names[job]})" if account.names.get(job) else job or "this run"
            table.add_row(
                f"  {name}", "", "", _format_number(cost.pld), _format_number(cost.rdp), "", "", *("",) * len(more)
            )
    return table


class _Key:
    """An entry by what it says."""

    def __init__(self, entry: StatementEntry) -> None:
        self.entry, self.said = entry, repr(entry.packed())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.said == other.said

    def __hash__(self) -> int:
        return hash(self.said)


def _describe_parties(entries: Sequence[StatementEntry], account: LedgerAccount, heads: dict[str, Any]) -> list[str]:
    said = [
        "Each party's epsilon covers all of its jobs together; a job's, below it, that job alone. Disjoint parties cost the largest of theirs."
    ]
    neighbours = sorted({entry.neighbours for entry in entries})
    said.append(f"Neighbours: {', '.join(neighbours) or 'none'}. A budget counts what jobs that run may still spend.")
    bare = sorted({what for entry in entries for what in entry.unprotected})
    if bare:
        said.append(f"Without differential privacy: {'; '.join(bare)}.")
    if "seeded-secret" in account.notes:
        said.append("Secrets came from a seed: no guarantee holds.")
    said += [f"{path}: {one.head}" for path, one in heads.items()]
    return said


def _list_names(parties: Sequence[str]) -> str:
    shown = ", ".join("everybody" if party == "*" else party for party in parties[:_SHOWN])
    return shown + (f" and {len(parties) - _SHOWN} more" if len(parties) > _SHOWN else "")


def _format_number(value: float | None) -> str:
    if value is None:
        return "not known"
    return "unbounded" if value == math.inf else f"{value:.4f}"


group = typer.Typer(help="Compute what noise costs, and audit what it claims.", no_args_is_help=True)
app.add_typer(group, name="privacy", rich_help_panel=EXTRAS)
group.command("ledger")(privacy_ledger)
group.command("audit")(privacy_audit)
group.command("study")(privacy_study)

Mechanism = Annotated[
    str, typer.Option("--mechanism", help="gaussian, laplace, skellam or discrete-gaussian.", metavar="NAME")
]
Delta = Annotated[float, typer.Option("--delta", help="Delta, in (0, 1).")]
Sampling = Annotated[
    str,
    typer.Option(
        "--sampling",
        help="Who takes part in a step: none (everybody), poisson:Q (each with probability Q) or fixed:K/N (K of N).",
    ),
]
DrawnBy = Annotated[
    str,
    typer.Option(
        "--drawn-by",
        help="Who knows the sample: public, server or party. It counts only against those who do not know it.",
    ),
]
Steps = Annotated[int, typer.Option("--steps", help="Number of releases.", min=1)]
Sensitivity = Annotated[
    float, typer.Option("--sensitivity", help="How far one unit moves a release: in L2, for laplace in L1.")
]
Values = Annotated[int, typer.Option("--values", help="Entries of a release; matters for discrete noise.", min=1)]
Unit = Annotated[str, typer.Option("--unit", help="What is protected: user, example or island.")]
Adversary = Annotated[
    str, typer.Option("--adversary", help="From whom: server, clients, or model (whoever gets the model).")
]
Adjacency = Annotated[
    str | None,
    typer.Option(
        "--adjacency",
        help="Neighbours: add-remove or replace-one. By default replace-one for fixed:K/N, else add-remove.",
    ),
]


@dataclass(frozen=True)
class ReleaseOptions:
    """The options that say what is released, how often, and to whom."""

    mechanism: Mechanism
    delta: Delta
    sampling: Sampling = "none"
    drawn_by: DrawnBy = "server"
    steps: Steps = 1
    sensitivity: Sensitivity = 1.0
    values: Values = 1
    unit: Unit = "user"
    adversary: Adversary = "model"
    adjacency: Adjacency = None

    def plan(self, noise: float) -> NoisePlan:
        """Return the plan with this noise."""
        from atoll.privacy import NoisePlan

        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("sampling", "adjacency")}
        rate, scheme = _parse_sample(self.sampling)
        neighbours = self.adjacency or ("replace-one" if scheme == "fixed" else "add-remove")
        return NoisePlan(**given, noise=noise, sampling=rate, scheme=scheme, neighbours=neighbours)


@group.command("epsilon")
@sharing(ReleaseOptions)
def epsilon(
    context: typer.Context,
    noise: Annotated[
        float, typer.Option("--noise", help="Standard deviation of the noise; for laplace its scale.", metavar="S")
    ],
    options: ReleaseOptions,
    json: Json = False,
) -> None:
    """Compute epsilon by both accountants: Rényi (rdp) and privacy loss distributions (pld)."""
    _give_plan(context, options.plan(noise), {})


@group.command("noise")
@sharing(ReleaseOptions)
def noise(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to keep.", metavar="E")],
    options: ReleaseOptions,
    accountant: Annotated[str, typer.Option("--accountant", help="Which epsilon to keep: pld or rdp.")] = "pld",
    json: Json = False,
) -> None:
    """Compute the smallest noise that keeps an epsilon."""
    from atoll.privacy import noise_for

    found = noise_for(options.plan(1.0), epsilon, accountant)
    _give_plan(context, found, {"epsilon": epsilon, "accountant": accountant})


def _parse_sample(text: str) -> tuple[float, str]:
    """The rate and the scheme of ``none``, ``poisson:Q`` or ``fixed:K/N``."""
    scheme, _, value = text.partition(":")
    try:
        if text == "none":
            return 1.0, "poisson"
        if scheme == "poisson":
            return float(value), scheme
        if scheme == "fixed":
            some, _, whole = value.partition("/")
            if 0 < int(some) <= int(whole):
                return int(some) / int(whole), scheme
    except ValueError:
        pass
    raise ConfigError(
        f"sampling={text!r}",
        where="--sampling",
        remedy="use none, poisson:Q with Q in (0, 1], or fixed:K/N with K <= N",
    )


def _give_plan(context: typer.Context, plan: NoisePlan, asked: dict[str, Any]) -> None:
    found = {"rdp": plan.epsilon("rdp"), "pld": _by_loss(plan)}
    setting = {name: getattr(plan, name) for name in ("mechanism", "noise", "sensitivity", "values", "steps", "delta")}
    drawn = {"sampling": plan.sampling, "scheme": plan.scheme, "drawn_by": plan.drawn_by, "amplified": plan.amplified}
    meaning = {"adjacency": plan.neighbours, "unit": plan.unit, "adversary": plan.adversary}
    shown = "not known" if found["pld"] is None else f"{found['pld']:.4f}"
    text = f"{plan.mechanism} noise {plan.noise:.6g}, {plan.steps} steps, delta {plan.delta:g}: epsilon {shown} (pld), {found['rdp']:.4f} (rdp)"
    text += f"\nIt protects one {plan.unit}, neighbours by {plan.neighbours}, from: {plan.adversary}."
    if plan.sampling < 1 and not plan.amplified:
        text += "\nThe sampling does not count: the adversary knows it, or it does not fit the neighbours."
    output_of(context).give({**asked, **found, **meaning, **setting, **drawn}, text)


def _by_loss(plan: NoisePlan) -> float | None:
    """Epsilon by loss distributions; ``None`` for discrete noise on vectors, whose worst pair is not known."""
    if plan.mechanism in ("skellam", "discrete-gaussian") and plan.values > 1:
        return None
    return plan.epsilon("pld")
