"""The section on labels in a training's report: who has which, what became of pseudo-labels, and who sees what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.core.exposure import Exposure

    from .holders import LabelMap

__all__ = ["labels_section"]

_MOST = 20
_SHARES = {"coverage": "Share of rows with a pseudo-label", "purity": "Share of pseudo-labels that are right"}


def labels_section(
    found: LabelMap,
    rows: Sequence[Mapping[str, Any]],
    exposures: Sequence[Exposure],
    gain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the section as plain data; see `atoll.report.page`.

    Args:
        found: who has which labels.
        rows: the training's records; columns whose last part is ``coverage`` or ``purity`` are drawn.
        exposures: who sees what.
        gain: what unlabelled rows added over labels alone, if that was measured: ``gain``, ``interval`` (two numbers or ``None``) and ``metric``.
    """
    tables = [{"head": ["party", "place", "rows", "with a label", "labels", "classes"], "rows": _holders(found)}]
    if gain is not None:
        tables.append({"head": ["gain over labels alone", "95 % interval", "metric"], "rows": [_gained(gain)]})
    tables.append(
        {"head": ["who", "sees", "assuming"], "rows": [[e.who, e.sees, e.assuming or "nothing"] for e in exposures]}
    )
    return {"title": "Labels", "text": _said(found, gain), "tables": tables, "figures": _figures(rows)}


def _said(found: LabelMap, gain: Mapping[str, Any] | None) -> str:
    clients = found.at("client")
    some = sum(pool.labelled > 0 for pool in clients)
    said = [
        f"{sum(p.labelled for p in clients):,} of {sum(p.rows for p in clients):,} rows at clients have a label, at {some:,} of {len(clients):,} clients."
    ]
    said += [f"{pool.labelled:,} labelled rows are at the helper party {pool.name}." for pool in found.at("helper")]
    if found.unknown:
        said.append(f"Nobody has a label of {', '.join(found.unknown)}.")
    if gain is None:
        said.append("What the unlabelled rows add shows only beside a training on labels alone: atoll labels compare.")
    return " ".join(said)


def _holders(found: LabelMap) -> list[list[str]]:
    clients = found.at("client")
    others = [pool for pool in found.pools if pool.place != "client"]
    made = [
        [
            pool.name,
            pool.place,
            f"{pool.rows:,}",
            f"{pool.labelled:,}",
            pool.state,
            _classes(pool.classes, found.classes),
        ]
        for pool in (*clients[:_MOST], *others)
    ]
    rest = clients[_MOST:]
    if rest:
        rows, labelled = sum(p.rows for p in rest), sum(p.labelled for p in rest)
        made.append([f"{len(rest):,} more", "client", f"{rows:,}", f"{labelled:,}", "", ""])
    return made


def _classes(own: Sequence[str], every: Sequence[str]) -> str:
    return "all" if every and len(own) == len(every) else ", ".join(own) or "–"


def _gained(gain: Mapping[str, Any]) -> list[str]:
    interval = gain.get("interval")
    shown = "one seed shows none" if interval is None else f"{interval[0]:+.3f} to {interval[1]:+.3f}"
    return [f"{gain['gain']:+.3f}", shown, str(gain.get("metric", "accuracy"))]


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Coverage and purity by round, where the training measured them."""
    names = sorted({name for row in rows for name in row if name.rpartition("/")[2] in _SHARES})
    made = []
    for name in names:
        asked = [row for row in rows if row.get(name) is not None]
        values = [{"name": name, "values": [float(row[name]) for row in asked]}]
        title = f"{_SHARES[name.rpartition('/')[2]]} ({name.rpartition('/')[0] or 'training'})"
        made.append({"kind": "points", "name": title, "labels": [str(row["round"]) for row in asked], "series": values})
    return made
