"""``atoll algorithms``: the algorithms, their costs and their properties."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.core.elsewhere import PEERS, find_peer
from atoll.learn.catalogue import Exchange, Fact, facts

__all__ = ["COLUMNS", "MEANING", "cells_of", "page"]


# The documentation page that lists the algorithms: which one when, what each costs, and their papers.


_MARKS = {True: "yes", False: "", None: "?"}
COLUMNS = ("algorithm", "family", "down", "up", "bits up", "client state", "secure", "unbiased", "everyone")
MEANING = "Floats per client and round, phase by phase, in d = number of parameters."
_FAMILIES = ("first order", "compressed", "personal", "second order", "admm", "wrapper", "statistics")
"""In the order of the page; a family that is not named here comes last."""

_HEAD = f"""# Algorithms

<!-- Made by `atoll algorithms --markdown > docs/algorithms.md`; a test compares the two. -->

This page helps you choose an algorithm, and lists what each of them costs.

## Which one when

| your situation | begin with | why |
| --- | --- | --- |
| you begin, or do not know yet | `FedAvg` | one exchange, no state, and the number that everybody compares with |
| clients hold different data, and the same clients come back | `Scaffold`, `FedDyn` | they correct the drift of local steps with a state at each client |
| clients hold different data, and a client comes back rarely | `FedProx`, `FedAvgM`, `MimeLite` | no state at clients: a proximal term, or momentum at the server |
| clients take different numbers of steps | `FedNova` | it normalises the updates, so that busy clients do not pull the model |
| sparse features or text | `FedAdam`, `FedYogi`, `FedAdagrad` | the server adapts the step of each parameter |
| the uplink is slow | `FedAvg` with a [stage](howto/compression.md), `FedPAQ`, `SparseTernary` | fewer bits per entry, or fewer entries |
| the uplink is slow, and all clients take part in every round | `FedCOMGATE`, `DIANA` | compression without a bias at the end |
| each client wants its own model | `Ditto`, `PFedMe` | a personal model beside the common one |
| there are a few kinds of clients | `IFCA` | one model for each kind; the clients find their kind |
| a convex loss with few parameters | `GIANT`, `DANE`, `FedNL` | curvature: tens of rounds, not thousands |
| linear or ridge regression | `SufficientStatistics` | the exact answer in one round |
| sparse weights (an L1 penalty) | `FedDualAvg`, `FedMirror` | averages in the dual space keep zeros |
| rounds are expensive, and clients have computed enough | `Upcycled` | every second round reuses what clients sent |
| there is no server | `DADMM`, `DLM`, or the topology [`Gossip`](howto/topologies.md) | neighbours exchange models |
| clients are slow or fail | any of them, with another [pacing](howto/pacing.md) | how long a round waits is not part of the algorithm |

Measure on your own data before you decide: [Compare fairly](howto/sweeps.md) runs several algorithms under the same seeds. The [results](../papers/docs/fedavg.md) show what held
when we repeated published comparisons.

## Read the tables

The tables list every algorithm of `atoll.learn.algorithms`, as `atoll algorithms` prints it. They also list the programs of `atoll.programs`, which you run with
[`atoll.simulate(atoll.programs.DADMM(...).program, islands)`](howto/programs.md).

**down** and **up**: {MEANING[:1].lower()}{MEANING[1:]} Semicolons separate phases. Atoll measures these floats: it runs each algorithm dry with its
default settings, on a model with `d` parameters. A single number that an algorithm also sends, such as the learning rate, is the 1 in `d + 1`. Stages, those of a
training and those of the method itself, do not count here. They turn these floats into fewer bytes. Programs declare their floats instead. In
their rows, `a neighbour` means one in the graph. `n` is the number of a client's rows, `M` of items and `D` of latent dimensions.

The other columns:

* **bits up**: only for methods with stages of their own. It is the size of a reply that these stages declare, for a model of 32-bit floats in `G` arrays, phase by phase. "?"
  means that the size depends on the values. `40 of d = 200` is the size for 200 parameters, where no formula in `d` fits. A training's history
  records the declared size as `bits_declared`, beside the measured `bytes_up`.
* **client state**: the floats that a client keeps between rounds, including what the method's own stages remember. With "none", the clients can differ in every round.
* **secure**: a reducer that sees only sums can add up the replies as the method sends them.
* **unbiased**: with all clients and equal numbers of steps, the fixed point is the optimum of the global objective.
* **everyone**: the method needs all clients in every round.
* The [papers](#papers) are below the tables.
"""


_SEVERAL = ("alignment protocol", "vertical model", "cut defence")
"""Kinds of parts for columns at several parties."""

_JOB = "kind of job"
_RULE = "rule of queries"
_INDEX = "index of queries"
_OF_QUERIES = (
    ("Rules of queries", _RULE, "SQL calls them in FROM, see [Call rules in SQL](howto/query-rules.md).", "as SQL calls it"),
    ("Indexes of queries", _INDEX, "A site finds rows of its own tables by them, see [Indexes of a site](howto/query-points.md#indexes-of-a-site).", "in a site's file"),
)  # fmt: skip
_NO_METHOD = "program"
"""The kind of job whose method is the user's own."""

_LINE = 40
"""A line on a part has at least so many characters, and ends with a sentence."""


@dataclass(frozen=True)
class Described:
    """A part for columns at several parties, a rule or an index of queries, or a kind of job.

    Attributes:
        name: its name, in Python, and of a part in configurations and policies.
        kind: what it is.
        text: what it does, in a line.
        address: where it is.
        asked: how a command asks for it; empty where only a configuration or Python can.
        rest: the rest of its own description.
    """

    name: str
    kind: str
    text: str
    address: str
    asked: str = ""
    rest: str = ""


def describe_parts() -> dict[str, Described]:
    """Name -> part: the alignment protocols, vertical models and defences that the rooms have, the rules and indexes of queries, then the kinds of jobs."""
    from atoll.cli.commands.vertical import MODELS
    from atoll.core.rooms import part_kinds, part_names
    from atoll.secure.psi import BloomEncoding

    asked = {name: f"atoll vertical --model {word}" for word, (name, _) in MODELS.items()}
    found: dict[str, Described] = {}
    for kind in _SEVERAL:
        home = part_kinds()[kind].homes[0]
        for name in part_names(kind):
            part = getattr(importlib.import_module(home), name)
            shown = "transfer method" if ".transfer." in part.__module__ else kind
            command = f"atoll psi --protocol {name.lower()}" if kind == "alignment protocol" else asked.get(name, "")
            found[name] = _describe(part, home, shown, command)
    found["BloomEncoding"] = _describe(BloomEncoding, "atoll.secure.psi", "record linkage", "atoll psi --fuzzy COLUMNS")
    order = [*_SEVERAL[:2], "transfer method", "record linkage", *_SEVERAL[2:], _RULE, _INDEX, _JOB]
    return dict(sorted((found | _describe_rules() | _describe_indexes() | _describe_jobs()).items(), key=lambda one: (order.index(one[1].kind), one[0])))  # fmt: skip


def _describe_rules() -> dict[str, Described]:
    """Name -> rule, as SQL calls it; those of modules that are imported too."""
    from atoll.query.rules import known_rules

    found = {}
    for one in known_rules().values():
        home = one.rewrite.__module__ if not one.rewrite.__module__.startswith("atoll.") else "atoll.query.rules"
        described = _describe(one.rewrite, home, _RULE, one.signature)
        found[one.name] = replace(described, name=one.name)
    return found


def _describe_indexes() -> dict[str, Described]:
    """Name -> local index, as a site's file calls it; those of modules that are imported too."""
    from atoll.query.indexes import PointIndex, known_indexes

    found = {}
    for name, one in known_indexes().items():
        home = one.__module__ if not one.__module__.startswith("atoll.") else "atoll.query.indexes"
        column = "location" if issubclass(one, PointIndex) else "age"
        found[one.__name__] = _describe(one, home, _INDEX, f"index: {{{column}: {name}}}")
    return found


def _describe_jobs() -> dict[str, Described]:
    """Name -> kind of job, at the package that gives it to users."""
    from atoll.core.addresses import load_object
    from atoll.core.rooms import job_kinds

    found = {}
    for kind, where in job_kinds().items():
        if kind != _NO_METHOD:
            module, _, name = where.partition(":")
            home = module.rpartition(".")[0]
            while name not in dir(importlib.import_module(home)):
                home = home.rpartition(".")[0]
            found[name] = _describe(load_object(where), home, _JOB, f"job: {kind}")
    return found


def _describe(part: Callable[..., Any], home: str, kind: str, asked: str) -> Described:
    text = inspect.getdoc(part) or ""
    first, _, rest = text.partition("\n\n")
    line = ""
    for sentence in re.split(r"(?<=\.)(?<!et al\.)\s", re.sub(r"`+", "", " ".join(first.split()))):
        if len(line) < _LINE:
            line = f"{line} {sentence}".strip()
    return Described(part.__name__, kind, line, f"{home}.{part.__name__}", asked, rest.strip() if rest else "")


def page(found: Sequence[Fact]) -> str:
    """Return the page in Markdown: FedAvg is the first row of the first table."""
    titles = ("algorithm", *COLUMNS[2:], "note")
    lines = [_HEAD]
    for family in sorted({fact.family for fact in found}, key=_place_family):
        lines += [f"## {_title_family(family)}\n", _format_line(titles), _format_line(["---"] * len(titles))]
        for fact in sorted(found, key=lambda fact: fact.name != "FedAvg"):
            if fact.family == family:
                name, _, *others = cells_of(fact)
                lines.append(_format_line([f"`{name}`", *others, fact.note]))
        lines.append("")
    lines += [
        "## Columns at several parties\n",
        "Alignment protocols find the rows that several parties share, see [Whom we share](howto/alignment.md). Models train over [their columns](howto/vertical.md), or [transfer labels](howto/transfer.md).\n",
        _format_line(("name", "kind", "what it does")), _format_line(["---"] * 3),
    ]  # fmt: skip
    parts = describe_parts().values()
    lines += [
        _format_line([f"`{one.name}`", one.kind, one.text]) for one in parts if one.kind not in (_RULE, _INDEX, _JOB)
    ]
    for title, kind, intro, asked in _OF_QUERIES:
        lines += [
            f"\n## {title}\n",
            f"{intro}\n",
            _format_line(("name", asked, "what it does")),
            _format_line(["---"] * 3),
        ]
        own = [one for one in parts if one.kind == kind and one.address.startswith("atoll.")]
        lines += [_format_line([f"`{one.name}`", f"`{one.asked}`", one.text]) for one in own]
    lines += [
        "\n## Kinds of jobs\n",
        "A configuration names them, such as `job: split-fed`, and in Python you give them to `atoll.simulate`. The algorithms above belong to `Training`, and models of columns at several parties to `Vertical`; the other jobs are methods of their own.\n",
        _format_line(("name", "configuration", "what it does")), _format_line(["---"] * 3),
    ]  # fmt: skip
    lines += [_format_line([f"`{one.name}`", f"`{one.asked}`", one.text]) for one in parts if one.kind == _JOB]
    lines.append("")
    lines.append("## Papers\n")
    lines += [
        f"* `{fact.name}`: {fact.paper}" for fact in sorted(found, key=lambda fact: fact.name.lower()) if fact.paper
    ]
    return "\n".join(lines) + "\n"


def _place_family(family: str) -> tuple[int, str]:
    return (_FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), family)


def _title_family(family: str) -> str:
    return "ADMM" if family == "admm" else f"{family[:1].upper()}{family[1:]}"


def _format_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def cells_of(fact: Fact) -> list[str]:
    """Return a row of the table."""
    down = "; ".join(exchange.down for exchange in fact.exchanges)
    up = "; ".join(exchange.up for exchange in fact.exchanges)
    bits = (
        "; ".join(_describe_exchange(exchange) for exchange in fact.exchanges)
        if any(e.packed for e in fact.exchanges)
        else ""
    )
    state = "?" if fact.state is None else "none" if fact.stateless else fact.state
    marks = [_MARKS[mark] for mark in (fact.secure, fact.unbiased, fact.everyone)]
    return [fact.name, fact.family, down, up, bits, state, *marks]


def _describe_exchange(exchange: Exchange) -> str:
    return (exchange.bits or "?") if exchange.packed else "as floats"


def page_of_names() -> str:
    """The documentation page of other frameworks' names."""
    lines = [
        "# Names elsewhere",
        "",
        "<!-- Made by `atoll algorithms --elsewhere --markdown > docs/coming-from/names.md`; a test compares the two. -->",
        "",
        "What other frameworks and papers call a thing, and where Atoll has it. If you ask the package `atoll` for such a name, the error says the same;",
        "`atoll algorithms --elsewhere NAME` does so too.",
    ]
    for framework, names in PEERS.items():
        lines += ["", f"## {framework}", "", "| elsewhere | in Atoll |", "| --- | --- |"]
        lines += [_format_line([f"`{name}`", _as_markdown(place)]) for name, place in names.items()]
    return "\n".join(lines) + "\n"


def _as_markdown(place: str) -> str:
    """Addresses as code, pages as links."""
    linked = re.sub(r"\(?docs/([\w/-]+)\.md\)?", lambda m: f"([{m[1].rpartition('/')[2]}](../{m[1]}.md))", place)
    return re.sub(r"(?<![`\w])(atoll\.\w+(?:\.\w+)*(?:\([^()]*(?:\([^()]*\))?[^()]*\))?)", r"`\1`", linked)


@app.command("algorithms", rich_help_panel=EXTRAS)
def command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="List only these algorithms. Default: all.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation page as Markdown.")] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Say where Atoll has what other frameworks call so.")
    ] = False,
    json: Json = False,
) -> None:
    """List the algorithms: paper, client state, floats per round each way, and properties; models and protocols for columns at several parties; and kinds of jobs. With --elsewhere: other frameworks' names."""
    if elsewhere:
        if markdown and not output_of(context).json:
            typer.echo(page_of_names(), nl=False)
            return
        told = (
            {name: find_peer(name) for name in names}
            if names
            else {n: p for own in PEERS.values() for n, p in own.items()}
        )
        table = PlainTable(header_style="bold")
        for head in ("elsewhere", "in Atoll"):
            table.add_column(head)
        for name, place in told.items():
            table.add_row(name, escape(place or "-"))
        output_of(context).give({"names": told}, table)
        return
    parts = describe_parts()
    chosen = [parts[name] for name in names or parts if name in parts]
    own = tuple(name for name in names or () if name not in parts)
    found = facts(own, further=tuple(parts)) if own or not names else []
    if markdown and not output_of(context).json:
        typer.echo(page(found), nl=False)
        return
    shown = [*([_make_cards(found)] if found else []), *([_make_part_cards(chosen)] if chosen else [])]
    said: dict[str, Any] = {"algorithms": [asdict(fact) for fact in found], "parts": [asdict(one) for one in chosen]}
    output_of(context).give(said, Group(*shown) if names else Group(_make_table(found), *_make_part_tables(chosen)))


def _make_table(found: list[Fact]) -> Table:
    caption = f"{MEANING} Papers: --json, or name an algorithm."
    table = PlainTable(header_style="bold", caption=caption)
    for column in COLUMNS:
        table.add_column(column)
    for fact in found:
        table.add_row(*cells_of(fact))
    return table


def _make_cards(found: list[Fact]) -> Table:
    """One block of lines for each algorithm."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for fact in found:
        for title, cell in zip((*COLUMNS, "paper", "note"), (*cells_of(fact), fact.paper, fact.note), strict=True):
            table.add_row(title, cell or "no")
        table.add_row()
    return table


def _make_part_tables(found: Sequence[Described]) -> Sequence[Table]:
    """Parts for columns at several parties, then rules of queries, then kinds of jobs."""
    made = []
    for title, second, kind in (
        ("Columns at several parties", "kind", ""),
        ("Rules of queries", "as SQL calls it", _RULE),
        ("Indexes of queries", "in a site's file", _INDEX),
        ("Kinds of jobs", "configuration", _JOB),
    ):
        table = PlainTable(header_style="bold", title=title, caption="Name one to read more." if kind == _JOB else None)
        for column in ("name", second, "what it does"):
            table.add_column(column)
        for one in found:
            if kind == (one.kind if one.kind in (_RULE, _INDEX, _JOB) else ""):
                table.add_row(one.name, escape(one.asked if kind else one.kind), escape(one.text))
        made.append(table)
    return made


def _make_part_cards(found: Sequence[Described]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for one in found:
        rows = {"name": one.name, "kind": one.kind, "what it does": one.text, "in Python": one.address, "asked for by": one.asked, "": one.rest}  # fmt: skip
        for title, cell in rows.items():
            if cell:
                table.add_row(title, escape(cell))
        table.add_row()
    return table
