"""What privacy has cost and what it bought: epsilon by round, accuracy by epsilon, and what the epsilon means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .drawing import SERIES, figure
from .facts import Facts

__all__ = ["accuracies_by_epsilon", "meaning", "privacy_figure", "privacy_overlay"]

_WHOM = {"server": "the server", "clients": "other clients", "model": "whoever gets the model"}


def meaning(privacy: Mapping[str, Any] | None) -> str:
    """What an epsilon means, in a sentence: delta, unit, neighbours, adversary and accountant; none is left out."""
    if not privacy:
        return ""
    units = privacy["unit"] if isinstance(privacy["unit"], str) else " and ".join(privacy["unit"])
    said = (
        f"Epsilon is counted by {privacy['accountant']} at delta {float(privacy['delta']):g}. It protects one {units} "
        f"({privacy['neighbours']} neighbours) against {_WHOM.get(privacy['adversary'], privacy['adversary'])}."
    )
    return f"{said} {privacy['how']}" if privacy.get("how") else said


def accuracies_by_epsilon(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(epsilon, accuracy) of each round with an accuracy, with the epsilon that was spent until then; infinite ones are left out."""
    spent, made = None, []
    for row in rows:
        spent = row.get("epsilon") if row.get("epsilon") is not None else spent
        if spent is not None and math.isfinite(spent) and row.get("test/accuracy") is not None:
            made.append((float(spent), float(row["test/accuracy"])))
    return made


def _by_round(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    found = [(row["round"], row["epsilon"]) for row in rows if row.get("epsilon") is not None]
    return [(number, float(value)) for number, value in found if math.isfinite(value)]


def privacy_figure(facts: Facts) -> str | None:
    """Epsilon by round, and accuracy by epsilon; ``None`` if no round has a finite epsilon."""
    spent, reached = _by_round(facts.rows), accuracies_by_epsilon(facts.rows)
    if not spent:
        return None
    whom = _WHOM.get(str((facts.privacy or {}).get("adversary")), "")

    def draw(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        x, y = zip(*spent, strict=True)
        panels[0].plot(x, y, color=SERIES[0], marker="o" if len(x) < 3 else None, markersize=3.5)
        panels[0].set_title("Epsilon by round" + (f", against {whom}" if whom else ""))
        panels[0].set_xlabel("round")
        panels[0].set_ylim(bottom=0)
        if reached:
            _accuracy(panels[1], reached, SERIES[0], None)

    columns = 2 if reached else 1
    return figure("privacy spent", draw, size=(5.3 * columns, 2.9), columns=columns)


def privacy_overlay(runs: Sequence[tuple[str, Facts]]) -> str | None:
    """Accuracy of several runs by the epsilon that each had spent; ``None`` without one."""
    lines = [(label, found) for label, facts in runs if (found := accuracies_by_epsilon(facts.rows))]
    if not lines:
        return None

    def draw(axis: Any) -> None:
        for i, (label, found) in enumerate(lines):
            _accuracy(axis, found, SERIES[i % len(SERIES)], label)
        axis.legend(loc="best", fontsize=8.5)

    return figure("Accuracy by epsilon", draw, size=(10.6, 3.6))


def _accuracy(axis: Any, found: Sequence[tuple[float, float]], colour: str, label: str | None) -> None:
    x, y = zip(*found, strict=True)
    axis.plot(x, y, color=colour, label=label, marker="o" if len(x) < 3 else None, markersize=3.5)
    axis.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=4.5)
    axis.set_title("Accuracy by epsilon")
    axis.set_xlabel("epsilon")
    axis.set_xlim(left=0)
    axis.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
    axis.set_ylim(top=1.0)
