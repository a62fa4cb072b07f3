"""The table of capabilities in ``docs/extend/composing.md``, from what the parts declare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.capability import Capability
from atoll.learn import Evaluation, Training
from atoll.learn.algorithm import Labelled
from atoll.learn.capabilities import ALL, Placed
from atoll.learn.composition import prepared_parts
from atoll.learn.learner import placed_model
from atoll.learn.local.own_loss import OwnLoss
from atoll.learn.metrics import Confusion
from atoll.learn.replies import placed_replies
from atoll.learn.round.state import DOWNLINK_NEEDS
from atoll.selection import FedProf, Once
from atoll.stages import Clip, GaussianNoise, ProductQuantizer, ScalarQuantizer
from tests.support.part_examples import DATA, PARTS

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "composing.md"
BEGIN, END = "<!-- capabilities -->\n", "<!-- end of capabilities -->\n"
_MOST = 5  # names in a cell


class _Worst(Confusion):
    """As if it did not add up."""

    additive = False


class _OwnLoss(FedAvg, Labelled):
    """As if it brought a loss with it."""

    @property
    def losses(self) -> tuple[Any, ...]:
        return (OwnLoss(),)


def _examples() -> Iterable[Placed]:
    """Every part of ``part_examples``, and of the kinds that it has no example of, in its slot."""
    for slot in (
        "algorithm",
        "topology",
        "pacing",
        "selection",
        "aggregation",
        "reducer",
        "evaluation",
        "budget",
        "privacy",
    ):
        for make in PARTS[slot].values():
            yield Placed.of(slot, make())
    yield Placed.of("algorithm", _OwnLoss(), "an algorithm with losses of its own")
    yield Placed.of("selection", FedProf(3, matching="encrypted"))
    yield Placed.of("selection", Once(3))
    for make in PARTS["uplink"].values():
        yield from (Placed.of("uplink", stage) for stage in make())
    yield from (
        Placed.of("uplink", stage) for stage in (Clip(1.0), GaussianNoise(1.0), ScalarQuantizer(), ProductQuantizer())
    )
    yield Placed("downlink", "downlink", DOWNLINK_NEEDS, lambda _: "-")
    yield Placed.of("metrics", _Worst(2), "a metric that is not additive")


def _late() -> Iterable[Placed]:
    """What a training adds to its parts when it meets its data."""
    for make in PARTS["algorithm"].values():
        algorithm = make()
        yield placed_replies(algorithm, algorithm, lambda: {"weight": np.zeros((4, 2))})
    for name, make in PARTS["model"].items():
        options: dict[str, Any] = {"algorithm": atoll.algorithms.SufficientStatistics()} if name == "bayes" else {}
        yield placed_model(Training(model=make(), **options).learner(DATA))
    yield placed_model(Training(model=nn.Linear(4, 2)).learner(DATA))
    for selection in (atoll.Everyone(), atoll.Uniform(3)):
        job = Training(model=atoll.models.linear(4, 2), selection=selection, buffers="local", evaluation=Evaluation())
        yield from (p for p in prepared_parts(job, job.learner(DATA), len(DATA)) if p.slot in ("cohort", "buffers"))


def declared() -> tuple[dict[Capability, list[str]], dict[Capability, list[str]]]:
    """Capability -> names of the parts that offer it, and of those that need it."""
    offers: dict[Capability, list[str]] = {c: [] for c in ALL}
    needs: dict[Capability, list[str]] = {c: [] for c in ALL}
    for placed in (*_examples(), *_late()):
        for need in placed.needs:
            needs[need.capability].append(placed.name)
        for capability in ALL:
            if placed.slot in capability.of and not placed.lack(capability):
                offers[capability].append(placed.name)
    return offers, needs


def _cell(names: list[str]) -> str:
    found = sorted(set(names), key=str.lower)
    more = len(found) - _MOST
    return ", ".join(found[:_MOST]) + (f" and {more} more" if more > 0 else "")


def table() -> str:
    """The table, as Markdown."""
    needs = declared()[1]
    rows = ["| capability | slot | what it promises | needed by, for example |", "|---|---|---|---|"]
    for c in ALL:
        slots = (" or " if c.some else ", ").join(c.of)
        rows.append(f"| {c.name} | {slots} | {c.means} | {_cell(needs[c])} |")
    return "\n".join(rows) + "\n"


def _place(text: str) -> tuple[int, int]:
    """Where the table begins and ends on the page."""
    return text.index(BEGIN) + len(BEGIN), text.index(END)


def written() -> str:
    """The table that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    first, last = _place(text)
    return text[first:last]


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    first, last = _place(page)
    PAGE.write_text(page[:first] + table() + page[last:], encoding="utf-8")
