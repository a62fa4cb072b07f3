"""Generalisation gaps of a federated training: how much worse a model is on new rows of those who trained it, and on clients who never did."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.errors import AtollError, ConfigError, DataError, nearest
from atoll.core.requests.task import Task
from atoll.rounds.history import lower_is_better

from .evaluation import held_model, scores

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.rounds.loop import Ended

    from ..context import Context
    from ..learner import Learner

__all__ = ["Gaps", "gaps_task", "measure_gaps", "require_held_out"]

_TRAINED, _HELD_OUT, _UNSEEN = "trained", "held_out", "unseen"
_NAMES = {
    _TRAINED: "participants' training rows",
    _HELD_OUT: "their held-out rows",
    _UNSEEN: "clients that never train",
}


@dataclass(frozen=True)
class Gaps:
    """How a model does on rows that shaped it, and on rows that did not.

    A participant is a client of which at least one round has taken a reply. Its model has seen ``trained`` rows, and not its ``held_out`` ones. All rows of the others are ``unseen``.
    A gap is positive where the model is worse on what it has not seen: for a loss or an error ``out_of_sample = held_out - trained`` and
    ``participation = unseen - held_out``, and with the opposite signs for a share such as accuracy.

    Yuan, Morningstar, Ning, Singhal, "What Do We Mean by Generalization in Federated Learning?", ICLR 2022.

    Attributes:
        participants: how many there are.
        others: clients that have never trained.
        examples: rows behind each group's values.
        values: measure -> group -> value over all rows of the group together.
        withheld: group, or client -> why it tells nothing.
    """

    participants: int
    others: int
    examples: Mapping[str, int]
    values: Mapping[str, Mapping[str, float]] = field(repr=False)
    withheld: Mapping[str, str] = field(default_factory=dict)

    def out_of_sample(self, measure: str = "loss") -> float:
        """Return how much worse the model is on participants' held-out rows than on their training rows; NaN where one is not known.

        Raises:
            ConfigError: it was not measured.
        """
        return self._between(measure, _TRAINED, _HELD_OUT)

    def participation(self, measure: str = "loss") -> float:
        """Return how much worse the model is on clients that never train than on participants' held-out rows; NaN where one is not known.

        Raises:
            ConfigError: it was not measured.
        """
        return self._between(measure, _HELD_OUT, _UNSEEN)

    def _between(self, measure: str, first: str, then: str) -> float:
        if measure not in self.values:
            raise ConfigError(
                f"no {measure!r} among the gaps.{nearest(measure, self.values)}",
                where="Gaps",
                remedy=f"use one of {', '.join(self.values)}" if self.values else "give clients rows to measure on",
            )
        found = self.values[measure]
        worse = found.get(then, np.nan) - found.get(first, np.nan)
        return worse if lower_is_better(measure) else -worse

    def plain(self) -> dict[str, Any]:
        """Return plain data, for a file: ``None`` for a gap that is not known."""
        told = {
            name: {"out_of_sample": _known(self.out_of_sample(name)), "participation": _known(self.participation(name))}
            for name in self.values
        }
        counts = {"participants": self.participants, "others": self.others, "examples": dict(self.examples)}
        values = {name: dict(found) for name, found in self.values.items()}
        return {**counts, "values": values, "gaps": told, "withheld": dict(self.withheld)}

    def sections(self) -> list[dict[str, Any]]:
        """Return a table for the report."""
        groups = tuple(_NAMES)
        head = ["measure", *_NAMES.values(), "out-of-sample gap", "participation gap"]
        rows = [
            [name, *(_shown(found.get(group, np.nan)) for group in groups), _shown(self.out_of_sample(name)), _shown(self.participation(name))]
            for name, found in self.values.items()
        ]  # fmt: skip
        rows.append(["rows", *(f"{self.examples.get(group, 0):,}" for group in groups), "", ""])
        why = "".join(f" {_NAMES.get(who, who)}: {reason}." for who, reason in self.withheld.items())  # fmt: skip
        text = f"{self.participants:,} clients have trained, {self.others:,} never did. A positive gap: the model is worse on what it has not seen.{why}"
        return [{"title": "Generalisation gaps", "text": text, "tables": [{"head": head, "rows": rows}]}]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _shown(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4g}"


def gaps_task(learner: Learner) -> Task:
    """Return the task by which a client measures a model on the rows that it trains on, and on those that it holds out.

    The message contains ``params``, and ``participant``: true replies with sums of each kind of rows, for a client that has both; false with one sum of all rows.
    """

    async def run(island: Island, message: Tree) -> dict[str, Aggregate]:
        params, known = held_model(learner, message["params"], island.state)
        held_out = getattr(island.data, "held_out", None)

        async def sums(rows: Any) -> dict[str, np.float64]:
            found: Any = learner.evaluate(params, rows)
            found = await found if inspect.isawaitable(found) else found
            return {name: np.float64(value if known else 0.0) for name, value in found.items()}

        own = await sums(island.data)
        apart = dict.fromkeys(own, np.float64(0.0)) if held_out is None else await sums(held_out)
        if not message["participant"]:
            return {_UNSEEN: Sum({name: own[name] + apart[name] for name in own}, role="metric")}
        if held_out is None:  # its training rows would stand beside held-out rows of others
            own = apart
        return {_TRAINED: Sum(own, role="metric"), _HELD_OUT: Sum(apart, role="metric")}

    return Task("atoll.learn.gaps:measure", run)


async def measure_gaps(fed: Federation, context: Context, ended: Ended) -> Gaps:
    """Measure the model that a training has made: at those whose replies it has taken, and at the others.

    A secure reducer shows sums over each group alone. A group that cannot be measured costs the training nothing: the gaps say why.
    """
    taken = {place for row in ended.history for place in row.get("replied_clients") or ()}
    mask = np.array([int(place) in taken for place in fed.parties.positions], bool)
    watch = fed.scope("gaps")
    watch.settle_at(fed.parties, fed.hub, fed.home)
    watch.observe()
    sums: dict[str, Mapping[str, Any]] = {}
    withheld: dict[str, str] = {}
    for participant, place in ((True, 0), (False, 1)):
        parties = fed.parties[np.flatnonzero(mask == participant)]
        groups = (_TRAINED, _HELD_OUT) if participant else (_UNSEEN,)
        if not len(parties):
            withheld |= dict.fromkeys(groups, "no client has trained" if participant else "every client has trained")
            continue
        message = {"params": ended.model, "participant": participant}
        try:
            told, refused = await _ask(watch, context, parties, message, place)
        except AtollError as error:  # the training is done: what refuses must not lose it
            withheld |= dict.fromkeys(groups, error.what)
            continue
        sums |= {group: told[group] for group in groups if group in told}
        withheld |= refused
    found = {group: scores(one) for group, one in sums.items()}
    names = dict.fromkeys(name for one in found.values() for name in one)
    values = {name: {group: one[name] for group, one in found.items() if name in one} for name in names}
    examples = {group: int(one["n"]) for group, one in sums.items()}
    return Gaps(int(mask.sum()), int((~mask).sum()), examples, values, withheld)


async def _ask(
    watch: Federation, context: Context, parties: Parties, message: Tree, place: int
) -> tuple[Tree, dict[str, str]]:
    """Return the sums of one group, which the training's reducer adds up if it hides replies, and whom they lack, and why."""
    combined = await watch.sum(
        parties,
        gaps_task(context.learner),
        message,
        at=("measure", place),
        quorum=0,
        reducer=context.reducer if context.reducer.secure else None,
    )
    failed = {name: str(error) for name, error in combined.errors.items()}
    return combined.value, {**combined.rejected, **failed}


def require_held_out(held_out: Any) -> None:
    """Refuse gaps where nobody holds out rows.

    Args:
        held_out: whether each client has such rows, ``(clients,)``; ``None`` if nobody here knows.

    Raises:
        DataError: no client has.
    """
    if held_out is not None and not np.any(held_out):
        raise DataError(
            "no client has rows that it does not train on, and generalisation gaps are measured on these",
            where="Evaluation.gaps",
            remedy="use islands.with_held_out(0.2), or held_out: 0.2 below data: or in a site's file",
        )
