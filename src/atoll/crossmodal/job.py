"""`Crossmodal`: the job in which speech sides and text sides help each other, and `CrossmodalResult`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import DataError, QuorumError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared, name_of
from atoll.core.rooms import part_names

from .parties import SideSteps, own_utterances
from .settings import CrossmodalSettings

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Crossmodal", "CrossmodalResult"]


@dataclass(frozen=True, kw_only=True)
class Crossmodal(CrossmodalSettings, Job):
    """Sides with speech, text or vectors train classifiers of one modality each, and share a classifier of phones, peer to peer.

    Every party trains ``y = f_m(f(x), f_p([phi_spe(p); phi_tpe(p)]))`` on its own rows (equations 37 to 41): ``f`` reads its modality and stays, ``f_p`` and ``phi_tpe`` read phones and are shared.
    After each round all parties hold ``sum_k N_k theta_k / sum_k N_k`` of the shared part (equation 42). The server carries sealed letters and learns no weights.

    With an ``epsilon``, shared parts move along sums of gradients of single examples, each shortened to ``clip``, plus Gaussian noise, and mini-batches are drawn by secret coins (DP-SGD). The promise
    covers everything that a party sends its peers: the copies of all rounds and the table.

    **The loss of the shared part decides whether that promise holds.** The gradients of the fused decision depend on ``f``, which the same rows have trained without noise, so noise on them does not bound
    what they tell: with ``shared_loss="fused"``, which is what the paper does, no epsilon is claimed. With ``shared_loss="phones"`` they are gradients of the phone classifier's own decision, which depends on
    released values alone.

    `CrossmodalSettings` says what its settings are.
    """

    kind: ClassVar[str] = "crossmodal"
    missing_features: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ("rounds",)

    @property
    def most_rounds(self) -> int | None:
        """All rounds."""
        return self.rounds

    def names(self) -> tuple[str, ...]:
        """The kind and the own networks, which a site's policy can allow or refuse."""
        return (*super().names(), *(name_of(type(one)) for one in (self.speech, self.text, self.vector)))

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all own networks."""
        return (*super().known_names(), *part_names("own network"))

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who learns what, and what has no guarantee."""
        parties = clients or (len(data) if data is not None else 2)
        noisy = f"with noise: ({self.epsilon:g}, {self.delta:g}) for each example" if self.promised else ""
        asked = "" if self.classes else ", its classes"
        kept = noisy if self.table_plan.noise else f"each phone is in {self.least} utterances or more"
        kind = "a noisy" if self.table_plan.noise else "the exact"
        scores = (
            "F1 and accuracy of each party: after each round on its rows for choosing one, at the end on held-out rows"
        )
        seen = [
            Exposure("server", f"the modality of each party, the width of its frames{asked}"),
            Exposure("server", scores),
            Exposure("every peer", "each party's copy of the shared network after each round", noisy),
            Exposure("every peer", f"the acoustic table: {kind} mean vector of each phone", kept),
        ]
        if self.weighing == "rows":
            seen.append(Exposure("every peer", "each party's number of rows, and of the utterances with each phone", kind="sizes"))  # fmt: skip
            seen.append(Exposure("server", "how many words each text has in all, and how many no dictionary has", kind="sizes"))  # fmt: skip
        elif self.weighing == "noisy":
            seen.append(Exposure("every peer", "each party's number of rows, with noise", noisy, kind="sizes"))
        notes = ["networks that read words or frames, words, frames, phones and labels stay at their party"]
        if self.epsilon is not None and not self.promised:
            notes.append("no epsilon is claimed: " + ("the shared part follows gradients that depend on networks trained without noise" if self.fused else "the table is exact"))  # fmt: skip
        if self.epsilon is None:
            notes.append("no differential privacy: copies have no noise")
        return Explanation(self.title, parties, tuple(seen), {"rounds": self.rounds, "steps": self.rounds * self.iterations}, tuple(notes))  # fmt: skip

    def prepare(self, data: Any) -> Prepared:
        """Make the tasks for these parties.

        Raises:
            DataError: there is one party alone.
        """
        if len(data) < 2:
            raise DataError(f"{len(data)} party", where="Crossmodal", remedy="give at least two: one trains alone as well without a federation")  # fmt: skip
        return PreparedCrossmodal(self, data)


# ------------------------------------------------------------------ the result


@dataclass(frozen=True)
class CrossmodalResult:
    """What a job has found.

    Attributes:
        sides: party -> ``modality``, ``f1`` and ``accuracy`` on its held-out rows, ``alone`` (the F1 of its own network without phones), ``epsilon`` of what it has sent (infinite without a promise), ``best_round``; where sizes are told, also ``words`` and ``unknown``.
        classes: the classes.
        rounds: rounds made.
        history: of each round, party -> F1 on the rows that choose the round.
        missing: parties that were missing in a round, or have no rows.
        bytes: bytes that the busiest party sent in a round.
        parameters: numbers of the shared network.
    """

    sides: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...]
    rounds: int
    history: tuple[Mapping[str, float], ...]
    missing: tuple[str, ...]
    bytes: int
    parameters: int

    def plain(self) -> dict[str, Any]:
        """The result as plain values; what is infinite or undefined is ``None``."""

        def finite(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        sides = {name: {key: finite(value) for key, value in side.items()} for name, side in self.sides.items()}
        return {"sides": sides, "classes": list(self.classes), "rounds": self.rounds, "missing": list(self.missing), "bytes": self.bytes, "parameters": self.parameters}  # fmt: skip


class PreparedCrossmodal(Prepared):
    """A `Crossmodal` for one population."""

    def __init__(self, job: Crossmodal, data: Any) -> None:
        self.job, self.data = job, data
        self.names = [str(name) for name in data.names]
        self.steps = SideSteps(job, self.names)
        self.tasks = self.steps.tasks

    def check(self, population: Any) -> None:
        """Look at a site's own rows."""
        for place in range(len(population)):
            own_utterances(population.shard(place))

    async def program(self, fed: Federation) -> dict[str, Any]:
        """Build the table, make all rounds, and let parties keep their networks."""
        state = await fed.restore(None)
        if state is None:
            state = await _open_job(fed, self.job, self.steps)
            await fed.checkpoint(state)
        while state["done"] < self.job.rounds and fed.ending is None:
            state = await _make_round(fed, self.steps, state)
            await fed.checkpoint(state)
        here = fed.parties.named(*state["parties"])
        told = (await fed.exchange(here, self.steps.close, {"label": self.job.label}, at="close")).by_name()
        return {**state, "sides": {name: _read_side(name, one) for name, one in told.items()}}

    def outcome(self, value: Any) -> CrossmodalResult:
        """Return the result."""
        sides = {str(name): dict(side) for name, side in sorted(value["sides"].items())}
        history = tuple({str(name): float(f1) for name, f1 in one.items()} for one in value["history"])
        return CrossmodalResult(sides, tuple(map(str, value["classes"])), int(value["done"]), history, tuple(map(str, value["missing"])), int(value["bytes"]), int(value["parameters"]))  # fmt: skip

    def most(self, rows: int) -> Sequence[Event]:
        """Return what a party releases at most."""
        job = self.job
        if not job.promised:
            return (NonPrivate(unit="example", what="copies of the shared network, and an acoustic table"),)
        once = [job.table_plan.event, *([job.size_event] if job.size_event else [])]
        return (*once, *([job.step_event(rows)] * job.rounds))

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return what holds for any job, and whether an epsilon that was asked for is not claimed."""
        found = list(super().notices(rows))
        if self.job.epsilon is not None and not self.job.promised:
            found.append(f"epsilon={self.job.epsilon:g} is not claimed: " + ("the shared part follows the fused loss, which depends on networks trained without noise" if self.job.fused else "the acoustic table is exact"))  # fmt: skip
        return found

    def facts(self, outcome: CrossmodalResult) -> Mapping[str, Any]:
        """Return scores and sizes."""
        return {"result": outcome.plain()}


# ------------------------------------------------------------------ what a party replies, which may be anything

_MOST = 2**31
_LIMITS = {"width": 2**16, "phones": 2**12, "classes": 2**12}
"""Numbers of a frame, phones and classes that a party may have: all parties make networks of such sizes."""
_SCORES = {"f1": 1.0, "accuracy": 1.0}
_SIDE = {**_SCORES, "alone": 1.0, "epsilon": math.inf, "best_round": _MOST, "words": _MOST, "unknown": _MOST}
"""Number of a side -> the largest that it may be."""


def _require_reply(name: str, what: str, value: Any, fits: bool) -> None:
    """Refuse a reply that no party of this job would make, by its party.

    Raises:
        DataError: it does not fit.
    """
    if not fits:
        raise DataError(f"the {what} that {name!r} tells: {str(value)[:60]}", where="Crossmodal", remedy=f"look at {name}: it runs another program, or leave it out")  # fmt: skip


def _require_description(name: str, told: Any, *, classes: bool) -> None:
    """Refuse what a party says of itself, if networks cannot be made of it."""
    wanted = {"modality", "width", "phones", "empty", *(["classes"] if classes else [])}
    _require_reply(name, "description", told, isinstance(told, Mapping) and set(told) == wanted)
    _require_reply(name, "modality", told["modality"], told["modality"] in ("speech", "text", "vector"))
    _require_reply(name, "absence of rows", told["empty"], isinstance(told["empty"], bool))
    width, least = told["width"], int(told["modality"] != "text" and not told["empty"])
    _require_reply(name, "width", width, type(width) is int and least <= width <= _LIMITS["width"])
    for what in ("phones", *(["classes"] if classes else [])):
        names = told[what]
        listed = isinstance(names, list) and all(isinstance(one, str) and one for one in names)
        _require_reply(name, what, names, listed and len(set(names)) == len(names) <= _LIMITS[what])


def _read_numbers(name: str, told: Any, most: Mapping[str, float], least: frozenset[str] = frozenset()) -> dict[str, Any]:  # fmt: skip
    """Numbers that a party tells, each from 0 to its limit; what cannot be measured is NaN.

    Args:
        name: the party.
        told: its reply.
        most: number -> its limit.
        least: those that must be there; by default all.
    """
    _require_reply(name, "scores", told, isinstance(told, Mapping) and (least or set(most)) <= set(told) <= set(most))
    for what, value in told.items():
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        _require_reply(name, what, value, plain and (0 <= value <= most[what] or (what in ("f1", "accuracy", "alone") and math.isnan(value))))  # fmt: skip
    return dict(told)


def _read_side(name: str, told: Any) -> dict[str, Any]:
    """What a party tells at the end."""
    _require_reply(name, "result", told, isinstance(told, Mapping) and told.get("modality") in ("speech", "text", "vector"))  # fmt: skip
    rest = {what: value for what, value in told.items() if what != "modality"}
    return {**_read_numbers(name, rest, _SIDE, frozenset(_SIDE) - {"words", "unknown"}), "modality": told["modality"]}


# ------------------------------------------------------------------ the program


async def _open_job(fed: Federation, job: Crossmodal, steps: SideSteps) -> dict[str, Any]:
    """Agree on classes and widths, build the table, and make the networks."""
    told = (await fed.exchange(fed.parties, steps.describe, {"classes": not job.classes}, at="describe")).by_name()
    for name, one in told.items():
        _require_description(name, one, classes=not job.classes)
    empty = sorted(name for name, one in told.items() if one["empty"])
    told = {name: one for name, one in told.items() if name not in empty}
    if len(told) < 2:
        raise DataError(f"{len(told)} parties with utterances", where="Crossmodal", remedy="give two parties or more at least two utterances each")  # fmt: skip
    speaking = [name for name, one in told.items() if one["modality"] == "speech"]
    widths = sorted({int(told[name]["width"]) for name in speaking})
    if len(widths) > 1:
        raise DataError(f"frames of {' and '.join(map(str, widths))} numbers", where="Crossmodal", remedy="let all speech sides use the same acoustic descriptors")  # fmt: skip
    if len({tuple(one["phones"]) for one in told.values()}) > 1:
        raise DataError("parties with different phones", where="Crossmodal", remedy="let all parties use one set of phones, such as atoll.crossmodal.PHONES")  # fmt: skip
    classes = list(job.classes) or sorted({str(name) for one in told.values() for name in one["classes"]})
    if len(classes) < 2:
        raise DataError(f"{len(classes)} class", where="Crossmodal", remedy="give rows of two classes or more")
    message = {"classes": classes, "width": widths[0] if widths else 1, "seed": int(fed.rng.child("weights").key % 2**31), "parties": sorted(told)}  # fmt: skip
    opened = await fed.exchange(fed.parties.named(*told), steps.open, message, at="open")
    here = opened.senders
    senders = sorted(name for name in here.names if name in speaking)
    begun = await fed.exchange(here, steps.begin, {"senders": senders}, mail=opened.mail, at="begin")
    sizes = begun.by_name()
    for name, size in sizes.items():
        _require_reply(name, "numbers of the shared network", size, isinstance(size, int) and 0 < size < _MOST)
    return {"classes": classes, "parties": sorted(begun.senders.names), "done": 0, "history": [], "missing": empty, "bytes": 0, "parameters": max(sizes.values(), default=0)}  # fmt: skip


async def _make_round(fed: Federation, steps: SideSteps, state: Mapping[str, Any]) -> dict[str, Any]:
    """Let all train and post, then let those who posted take the mean."""
    number = state["done"] + 1
    message = {"round": number, "parties": state["parties"]}
    before = fed.meter.devices(len(fed.world.roster))["bytes_up"]
    trained = await fed.exchange(fed.parties.named(*state["parties"]), steps.train, message, at=("train", number))
    senders = sorted(trained.senders.names)
    if len(senders) < 2:
        raise QuorumError(f"{len(senders)} parties trained in round {number}", where="Crossmodal", remedy="invite more parties: a mean of one copy is that copy")  # fmt: skip
    mixed = await fed.exchange(trained.senders, steps.mix, {**message, "senders": senders}, mail=trained.mail, at=("mix", number))  # fmt: skip
    scores = {name: _read_numbers(name, one, _SCORES)["f1"] for name, one in mixed.by_name().items()}
    up = int((fed.meter.devices(len(fed.world.roster))["bytes_up"] - before).max(initial=0))
    away = sorted(set(state["parties"]) - set(scores))
    known = {name: value for name, value in scores.items() if math.isfinite(value)}
    fed.record({**{f"f1_{name}": value for name, value in known.items()}, "parties": len(scores)})
    return {**state, "done": number, "history": [*state["history"], scores], "missing": sorted({*state["missing"], *away}), "bytes": max(state["bytes"], up)}  # fmt: skip
