"""The program where the server may see the reply of each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError

from .described import binned, described, next_bits
from .histogram import Drift, drift_of
from .moments import Relations
from .replies import WHOLE, CellReply, Key, SiteReply, _of, kinds_of_all, together
from .sketch import BITS, between, number_of, positions_of
from .summary import RowsSummary, Summary

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Statistics

__all__ = ["by_site"]

_STEP = 15
"""Bits of a key that a round counts."""

Edges = Mapping[str, Any]
Exact = dict[Key, dict[str, dict[float, float]]]


async def by_site(fed: Federation, job: Statistics) -> Summary:
    """Ask each site once for what it can tell alone, once for what needs common bins or means, and for exact quantiles a few times more."""
    state = await fed.restore({"least": None, "sites": [], "described": [], "binned": [], "exact": None})
    job, state["least"] = await job.resolved(fed, state["least"])
    plan = job.plan.pack()
    if len(fed.records) < 1:
        first = await fed.ask_all(fed.parties, described, {"plan": plan}, quorum=job.least(len(fed.parties)))
        state = {**state, "sites": list(first.senders.names), "described": list(first.values)}
        fed.record({"contact": "moments", "parties": len(first.senders)})
        await fed.checkpoint(state)
    replies = [SiteReply.unpack(*pair) for pair in zip(state["sites"], state["described"], strict=True)]
    kinds, whole = kinds_of_all(replies), _whole(replies)
    _require_rows(job, whole[WHOLE].rows, sum(reply.rows for reply in replies))
    withheld = [f"{name}: no reply" for name in fed.parties.names if name not in state["sites"]]
    withheld += _withheld(replies, kinds, job.least_rows)
    senders = fed.parties.named(*state["sites"])
    edges, means, related = job.edges(whole[WHOLE]), job.means(whole[WHOLE], kinds), None
    names = list(means)
    if edges or means:
        if len(fed.records) < 2:
            message = {"plan": plan, "edges": edges, "means": means}
            second = await fed.ask_all(senders, binned, message, quorum=len(senders))
            state = {**state, "binned": list(second.values)}
            fed.record({"contact": "histograms", "parties": len(second.senders)})
            await fed.checkpoint(state)
        for reply, told in zip(replies, state["binned"], strict=True):
            withheld += reply.with_bins(told, edges)
            withheld += [f"{reply.site}: the correlation of {a} and {b}: with other sums it shows fewer than min_count={job.least_rows} rows" for a, b in told.get("unrelated", ())]  # fmt: skip
        for told in state["binned"]:
            if told["relations"] is None:
                continue
            names, part = [str(name) for name in told.get("related", names)], Relations.unpack(told["relations"])
            related = part if related is None else related.merge(part)
        whole = _whole(replies)
    exact = await _exact(fed, job, plan, senders, whole, state) if job.exact else {}
    return _summary(job, replies, whole, kinds, withheld, exact, related, names, len(fed.records))


def _require_rows(job: Statistics, found: int, rows: int) -> None:
    """Refuse to describe no row, where conditions leave none.

    Raises:
        DataError: names the conditions.
    """
    if job.where and rows and not found and job.least_rows < 2:  # few rows are withheld, and not told to be none
        raise DataError(
            f"no row meets {job.plan.base.removeprefix('the rows where ')}",
            where="Statistics.where",
            remedy="compare with values that the column has: describe it without the condition to see them",
        )


def _whole(replies: Sequence[SiteReply]) -> dict[Key, CellReply]:
    """The cells over all sites: all rows first, then groups in the order of their names."""
    keys = sorted({key for reply in replies for key in reply.cells} | {WHOLE})
    return {key: together([reply.cells[key] for reply in replies if key in reply.cells]) for key in keys}


def _withheld(replies: Sequence[SiteReply], kinds: Mapping[str, str], least: int) -> list[str]:
    told = []
    for reply in replies:
        for family, label, column in reply.withheld:
            what = f"{column}{_of(family, label)}" if column else f"all rows{_of(family, label)}"
            some = "values of " if column and kinds.get(column) != "number" else ""
            told.append(f"{reply.site}: {some}{what}: fewer than min_count={least} rows, or what would give them away")
        told += [f"{reply.site}: values of {name}: they are nearly all different" for name in reply.unlisted]
        told += [
            f"{reply.site}: min and max of {name}: they are values of single rows"
            for name in reply.cells.get(WHOLE, CellReply()).ends
        ]
        told += [f"{reply.site}: {name}: no such column" for name in kinds if name not in reply.kinds]
    return told


def _summary(
    job: Statistics,
    replies: Sequence[SiteReply],
    whole: Mapping[Key, CellReply],
    kinds: Mapping[str, str],
    withheld: list[str],
    exact: Exact,
    related: Relations | None,
    columns: list[str],
    contacts: int,
) -> Summary:
    shares = job.quantiles
    parts = {key: cell.part(kinds, shares, exact.get(key, {})) for key, cell in whole.items()}
    groups: dict[str, dict[str, RowsSummary]] = {}
    for (family, label), part in parts.items():
        if family:
            groups.setdefault(family, {})[label] = part
    sites = {reply.site: reply.cells.get(WHOLE, CellReply()).part(kinds, shares, {}) for reply in replies}
    return Summary(
        whole=parts[WHOLE],
        sites=sites,
        groups=groups,
        correlations=None if related is None else (columns, related.correlations()),
        drift=drifts(replies, whole[WHOLE], kinds) if job.drift else {},
        withheld=withheld,
        errors=job.errors(len(replies)),
        contacts=contacts,
    )


def drifts(replies: Sequence[SiteReply], whole: CellReply, kinds: Mapping[str, str]) -> dict[str, dict[str, Drift]]:
    """Site -> column -> its distances from all sites."""
    found: dict[str, dict[str, Drift]] = {}
    for reply in replies:
        cell = reply.cells.get(WHOLE)
        if cell is None:
            continue
        rows = {name: _drift(name, kind, cell, whole) for name, kind in kinds.items()}
        found[reply.site] = {name: drift for name, drift in rows.items() if drift is not None}
    return found


def _drift(name: str, kind: str, cell: CellReply, whole: CellReply) -> Drift | None:
    if kind != "number":
        if name not in cell.categories or name not in whole.categories:
            return None
        labels = list(whole.categories[name][2])
        here, everywhere = (_counts(of, name, labels) for of in (cell, whole))
        return drift_of(here, everywhere, labels, ordered=False) if labels else None
    if name in cell.bins and name in whole.bins:
        edges = whole.bins[name].edges.tolist()
        labels = [f"{low:.6g} to {high:.6g}" for low, high in pairwise(edges)]
        return drift_of(cell.bins[name].counts, whole.bins[name].counts, labels, ordered=True)
    if name not in cell.sketches or not whole.sketches[name].size:
        return None
    sketch = whole.sketches[name]
    inner = np.unique([sketch.quantile(k / 10) for k in range(1, 10)])
    below, everything = (np.diff([0, *of.below(inner).tolist(), of.size]) for of in (cell.sketches[name], sketch))
    ends = ["", *[f"{edge:.6g}" for edge in inner.tolist()], ""]
    labels = [f"{low} to {high}".strip() for low, high in pairwise(ends)]
    return drift_of(below, everything, labels, ordered=True)


def _counts(cell: CellReply, name: str, labels: Sequence[str]) -> list[int]:
    values = cell.categories[name][2]
    return [values.get(label, 0) for label in labels]


async def _exact(
    fed: Federation, job: Statistics, plan: Any, senders: Any, whole: Mapping[Key, CellReply], state: dict[str, Any]
) -> Exact:
    """Find the values at the ranks of the quantiles, a few bits of their keys a contact; a checkpoint keeps what is known.

    The sketch has the first bits. Each contact counts the next bits among the values that share those known.
    """
    wanted = [
        (key, name, rank)
        for key, cell in whole.items()
        for name, sketch in cell.sketches.items()
        for rank in sorted({r for q in job.quantiles for r in positions_of(q, sketch.size)[:2]})
        if sketch.size
    ]
    shift = 52 - job.digits
    done = state["exact"] or {
        "known": BITS - shift,
        "found": [list(whole[key].sketches[name].bucket_at(rank)) for key, name, rank in wanted],
    }
    while done["known"] < BITS and wanted:
        bits = min(_STEP, BITS - done["known"])
        targets = list(
            dict.fromkeys((n, *key, found[0]) for (key, n, _), found in zip(wanted, done["found"], strict=True))
        )
        message = {"plan": plan, "targets": [list(t) for t in targets], "known": done["known"], "bits": bits}
        told = await fed.ask_all(senders, next_bits, message, quorum=len(senders))
        counts = dict(zip(targets, np.sum([np.asarray(one["counts"]) for one in told.values], axis=0), strict=True))
        found = []
        for (key, name, rank), (prefix, below) in zip(wanted, done["found"], strict=True):
            cumulative = below + np.cumsum(counts[name, *key, prefix])
            place = int(np.searchsorted(cumulative, rank, side="right"))
            found.append([(prefix << bits) | place, int(cumulative[place] - counts[name, *key, prefix][place])])
        done = {"known": done["known"] + bits, "found": found}
        state["exact"] = done
        fed.record({"contact": "ranks", "parties": len(told.senders)})
        await fed.checkpoint(state)
    values = {target: number_of(found[0]) for target, found in zip(wanted, done["found"], strict=True)}
    made: Exact = {}
    for key, name in dict.fromkeys((key, name) for key, name, _ in wanted):
        size = whole[key].sketches[name].size
        places = {q: positions_of(q, size) for q in job.quantiles}
        made.setdefault(key, {})[name] = {
            q: between(values[key, name, low], values[key, name, high], weight)
            for q, (low, high, weight) in places.items()
        }
    return made
