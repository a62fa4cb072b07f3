"""Chains: stages in order, and their effect on aggregates.

Round parameters that are fitted: a scale or a codebook that follows from the last sum, or from a mock client on public data.

A program keeps them as a tree of its state, so that they are in its checkpoints: ``{aggregate: {stage: parameters}}``, with stages by their place in the chain.
Each entry has a ``"version"``, which grows with every fit. An encoding has its version in its structure, so encodings of two versions do not add up, and one
that is decoded under another version is refused.

A stage is fitted to its *input*: what it gets at a typical party, after the stages before it, and after the weight if it acts on summands. The mean input of a
sum is known when the sum is decoded (``Combined.inputs``); that of a mock client's reply is what ``inputs_of`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Total
from ..algebra.rng import Rng, child_keys
from ..algebra.tree import Tree
from ..errors import CompositionError
from ..event import Event
from ..facets import facet
from ..message import Words
from .stage import SEED_BYTES, Fitting, Guarding, Stage, StageContext, WithMemory, Worded, seeds_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Chain", "Inputs", "Sent", "SentBlock", "Told", "due", "fit_chain", "inputs_of"]


Row = tuple[int, Stage, Tree]
_MANY = 1 << 40


@dataclass(frozen=True)
class Sent:
    """One client's aggregate after the party half.

    Attributes:
        total: the value to add up, as a total of one.
        wire: the part that crosses the link.
        memory: what the stages remember, by index; empty if no stage remembers.
    """

    total: Total
    wire: Tree
    memory: dict[str, Tree]


@dataclass(frozen=True)
class SentBlock:
    """Aggregates of a block of clients after the party half; leaves have a leading client axis.

    Attributes:
        aggregate: the aggregate to weight and add up.
        wire: the part that crosses the links.
        memory: what the stages remember, by index.
    """

    aggregate: Aggregate
    wire: Tree
    memory: dict[str, Tree]


class Chain:
    """Stages in order, and their effect on aggregates.

    Args:
        stages: value stages first, then summand stages.
        place: requests for the same task share the stages' memory if their chains have the same place.
        replies: every sum that is used has at least this many replies; see ``within``.
        hidden: whether replies can be seen only in such a sum.
        indexing: whether encodings that are indices add up as counts, see ``Stage.addends``; else each is decoded on arrival.
        fitted: the round parameters of stages that fit; see ``atoll.core.requests.chain``.
        excess_added: whether the half of a reducer adds the noise that can be taken back; see ``Stage.excess``.

    Attributes:
        events: what one aggregate of one reply releases.
        secret: whether a stage draws on the party's secret.
        bound: largest L2 norm of an encoded value, as the stages promise it; ``None`` without a bound.
        excess: noise that a reducer can take back, see ``Stage.excess``; ``None`` for none.
        guards: whether measurements beside the value stay at the party.

    Raises:
        CompositionError: a value stage follows a summand stage, or a stage follows a binary form that is not a sum of numbers; or a stage
            promises privacy and no stage before it bounds what one client can change.
    """

    def __init__(
        self,
        stages: Sequence[Stage] = (),
        place: str = "",
        *,
        replies: int = 1,
        hidden: bool = False,
        indexing: bool = False,
        fitted: Tree = None,
        excess_added: bool = False,
    ) -> None:
        if not isinstance(stages, Sequence) or not all(isinstance(stage, Stage) for stage in stages):
            raise CompositionError(
                f"uplink={stages!r} is not a list of stages",
                where="a request",
                remedy="use for example uplink=[Clip(1.0)]",
            )
        self.stages = tuple(stages)
        self.place = place
        self.replies = replies
        self.hidden = hidden
        self.indexing = indexing
        self.fitted = fitted
        self.excess_added = excess_added
        for first, stage in zip(self.stages, self.stages[1:], strict=False):
            if stage.on == "value" and first.on == "summand":
                raise _make_misplaced_error(stage, first, "which acts on the summand")
        self.value_stages = tuple(s for s in self.stages if s.on == "value")
        self.summand_stages = tuple(s for s in self.stages if s.on == "summand")
        for first, stage in zip(self.value_stages, self.value_stages[1:], strict=False):
            if first.packs:
                raise _make_misplaced_error(stage, first, "which sends a binary form")
        for first, stage in zip(self.stages, self.stages[1:], strict=False):
            if facet(first, Worded).words or facet(first, Worded).indexes:
                raise _make_misplaced_error(
                    stage, first, f"which sends {'words' if facet(first, Worded).words else 'indices'}"
                )
        self._before: list[float | None] = []
        self.events: tuple[Event, ...] = ()
        bound: float | None = None
        for stage in self.stages:
            self._before.append(bound)
            self.events += facet(stage, Guarding).events(bound)
            bound = facet(stage, Guarding).sensitivity(bound)
        self.bound = bound
        self.excess = next(
            (facet(stage, Guarding).excess for stage in self.stages if facet(stage, Guarding).excess is not None), None
        )
        self.secret = any(facet(stage, Guarding).secret for stage in self.stages)
        self.guards = any(facet(stage, Guarding).guards for stage in self.stages)

    def within(self, replies: int, *, hidden: bool, indexing: bool = False) -> Chain:
        """The same stages in a request whose sum is used only if it has this many replies.

        Args:
            replies: the quorum.
            hidden: whether replies can be seen only in that sum, as with a secure reducer.
            indexing: whether the reducer adds up counts of indices.
        """
        replies = max(1, replies)
        if (replies, hidden, indexing) == (self.replies, self.hidden, self.indexing):
            return self
        return self._with(replies=replies, hidden=hidden, indexing=indexing)

    def knowing(self, fitted: Tree) -> Chain:
        """The same stages with these fitted round parameters; ``None`` leaves them at what ``Stage.public`` returns."""
        if fitted is self.fitted:
            return self
        return self._with(fitted=fitted)

    def without_excess(self) -> Chain:
        """The same stages for a half that adds the noise which can be taken back; see ``Stage.excess``."""
        return self if self.excess is None or self.excess_added else self._with(excess_added=True)

    def _with(self, **changes: Any) -> Chain:
        own = {name: getattr(self, name) for name in ("replies", "hidden", "indexing", "fitted", "excess_added")}
        return Chain(self.stages, self.place, **{**own, **changes})

    def leaving(self, reply: Mapping[str, Aggregate]) -> Mapping[str, Aggregate]:
        """The part of a reply that may leave: if a stage guards it, measurements stay, because no stage acts on them."""
        return {name: a for name, a in reply.items() if a.staged} if self.guards else reply

    def __bool__(self) -> bool:
        return bool(self.stages)

    @property
    def summable(self) -> bool:
        """Whether encodings add up."""
        return all(stage.summable or (facet(stage, Worded).indexes and self.indexing) for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether a stage's round parameters are fitted."""
        return any(facet(stage, Fitting).fits for stage in self.stages)

    @property
    def remembers(self) -> bool:
        """Whether a stage keeps memory at the parties."""
        return any(facet(stage, WithMemory).remembers for stage in self.stages)

    def require_summable(self, why: str) -> None:
        """Refuse stages whose encodings cannot be added up.

        Raises:
            CompositionError: one of them is not summable.
        """
        for stage in self.stages:
            if facet(stage, Worded).indexes and not self.indexing:
                raise CompositionError(
                    f"{type(stage).__name__} sends indices, and {why} adds up numbers",
                    where="uplink",
                    remedy="use SecureIndexing, which adds up indices as counts, or ScalarQuantizer, whose words add up",
                )
            if not (stage.summable or facet(stage, Worded).indexes):
                raise CompositionError(
                    f"{type(stage).__name__} is not summable: its encodings cannot be added up, and {why} sees only sums",
                    where="uplink",
                    remedy="use a summable stage, or a plain reducer",
                )

    def public(self, rng: Rng) -> list[Tree]:
        """The round parameters of every stage. Those of a stage that fits belong to an aggregate each: see ``known``."""
        made: list[Tree] = []
        for i, stage in enumerate(self.stages):
            known = stage.public(rng.child(i, stage.name))
            if facet(stage, Fitting).fits:
                of = {name: rows[str(i)] for name, rows in (self.fitted or {}).items() if str(i) in rows}
                known = {"unfitted": known, "of": of}
            made.append(known)
        return made

    def find_parameters(self, public: Sequence[Tree], i: int, name: str) -> Tree:
        """The round parameters of stage ``i`` for the aggregate of this name, from what ``public`` returns."""
        if not public:
            return None
        found = public[i]
        if facet(self.stages[i], Fitting).fits and isinstance(found, dict) and found.keys() == {"unfitted", "of"}:
            return found["of"].get(name, found["unfitted"])
        return found

    def fresh(self, reply: Mapping[str, Aggregate]) -> dict[str, dict[str, Tree]]:
        """What a party remembers before its first reply, given a reply of this form: maps an aggregate to memories by stage index."""
        rows = [(i, stage) for i, stage in enumerate(self.stages) if facet(stage, WithMemory).remembers]
        staged = {name: aggregate for name, aggregate in reply.items() if rows and aggregate.encoded}
        return {
            name: {str(i): facet(stage, WithMemory).fresh(a.value) for i, stage in rows} for name, a in staged.items()
        }

    # ------------------------------------------------------------------ the party half

    def encode(self, aggregate: Aggregate, public: Sequence[Tree], rng: Rng) -> tuple[Total, Tree]:
        """Encode a party's first reply: ``send`` without memory. Return the total of one, and the part that crosses the link."""
        sent = self.send(aggregate, public, rng, self.fresh({"": aggregate}).get("", {}))
        return sent.total, sent.wire

    def rehearse_send(self, name: str, aggregate: Aggregate, public: Sequence[Tree], rng: Rng) -> Sent:
        """Send one aggregate of a first reply through the stages with noise that is not secret, only to find its size: it must not be released."""
        memory = self.fresh({name: aggregate}).get(name, {})
        seeds = np.zeros((1, SEED_BYTES), dtype=np.uint8)
        return self.send(aggregate, public, rng.child(name), memory, seeds, name, rehearsal=True)

    def send(
        self,
        aggregate: Aggregate,
        public: Sequence[Tree],
        rng: Rng,
        memory: Mapping[str, Tree],
        seeds: NDArray[np.uint8] | None = None,
        name: str = "",
        rehearsal: bool = False,
    ) -> Sent:
        """Send one client's aggregate through the stages.

        If the chain and the aggregate are summable, the total stays encoded; otherwise each reply is decoded here, on arrival.

        Args:
            aggregate: the client's reply.
            public: round parameters of every stage.
            rng: the client's stream for this aggregate.
            memory: what the client's stages remember of this aggregate.
            seeds: the client's secret seed for this aggregate, ``(1, 32)``, if the chain is ``secret``.
            name: the aggregate's name, by which fitted parameters are found.
            rehearsal: whether nothing is released, so that a stage need not refuse terms under which it would be.
        """
        if not aggregate.encoded or not self.stages:
            return Sent(aggregate.total(), aggregate.value, {})
        before, after = self._pairs(public, name)
        if after and not aggregate.summable:
            raise CompositionError(
                f"{type(after[0][1]).__name__} acts on summands, but {aggregate.kind!r} replies are not summed",
                where="uplink",
                remedy="use stages that act on values",
            )
        wire, kept = aggregate.value, dict[str, Tree]()
        for row in before:
            context = self._context(row, aggregate, _key_of(rng, row), seeds, rehearsal)
            wire = self._one(row[0], row[1], context, wire, memory, kept)
        decoded = not (self.summable and aggregate.summable)
        total = aggregate.with_value(_undo(before, wire, memory) if decoded else _addends(before, wire)).total()
        summand = total.value
        for row in after:
            context = self._context(row, aggregate, _key_of(rng, row), seeds, rehearsal)
            if facet(row[1], Worded).words and not _finite(
                summand
            ):  # words have no infinity: whoever adds up sees this value, and rejects it
                return Sent(replace(total, value=summand), summand, kept)
            wire = summand = self._one(row[0], row[1], context, summand, memory, kept)
        if after and not self.summable:
            summand = _undo(after, summand, memory)
        linked = _on_the_link(self.stages[-1], wire)
        if self.hidden and facet(self.stages[-1], Worded).words and self.summable:
            summand = linked
        return Sent(replace(total, value=summand), linked, kept)

    @staticmethod
    def _one(
        i: int, stage: Stage, context: StageContext, value: Tree, memory: Mapping[str, Tree], kept: dict[str, Tree]
    ) -> Tree:
        if not facet(stage, WithMemory).remembers:
            return stage.encode(value, context)
        value, kept[str(i)] = facet(stage, WithMemory).remember(value, memory[str(i)], context)
        return value

    def _context(
        self,
        row: Row,
        aggregate: Aggregate,
        keys: NDArray[np.uint64],
        seeds: NDArray[np.uint8] | None,
        rehearsal: bool = False,
    ) -> StageContext:
        """What a stage sees at each party of a block. Replies have equal weight only in a sum with weights of 1; else shared noise would be too little."""
        i, stage, known = row
        if not facet(stage, Guarding).secret:
            return StageContext(known, keys, sensitivity=self._before[i])
        alike = aggregate.kind == "sum" or (
            aggregate.kind == "mean" and bool((np.asarray(aggregate.weight) == 1).all())
        )
        replies = _MANY if rehearsal else self.replies if alike else 1
        hidden = self.hidden or rehearsal
        return StageContext(
            known, keys, seeds_for(seeds, f"stage/{i}"), self._before[i], replies, hidden, self.excess_added
        )

    def send_block(
        self,
        aggregate: Aggregate,
        public: Sequence[Tree],
        keys: NDArray[np.uint64],
        memory: Mapping[str, Tree],
        seeds: NDArray[np.uint8] | None = None,
        name: str = "",
    ) -> SentBlock:
        """Send a block of clients' aggregates through the value stages, for chains without summand stages. Arguments as in ``send``, one row a client."""
        if not aggregate.encoded or not self.stages:
            return SentBlock(aggregate, aggregate.value, {})
        wire, kept, before = aggregate.value, dict[str, Tree](), self._pairs(public, name)[0]
        for row in before:
            i, stage, _ = row
            context = self._context(row, aggregate, child_keys(keys, "stage", i), seeds)
            wire, now = facet(stage, WithMemory).remember_block(wire, memory.get(str(i)), context)
            if facet(stage, WithMemory).remembers:
                kept[str(i)] = now
        value = wire
        if self.summable and aggregate.summable:
            value = _addends(before, wire)
        else:
            for i, stage, known in reversed(before):
                value = stage.decode_block(value, known, memory.get(str(i)))
        return SentBlock(aggregate.with_value(value), _on_the_link(self.stages[-1], wire), kept)

    # ------------------------------------------------------------------ the server half

    def counts(self, total: Total, public: Sequence[Tree], name: str = "", *, exact: bool = False) -> dict[str, int]:
        """What the stages count in a sum, before it is decoded; see ``Stage.counts``."""
        if not total.encoded or not self.stages or total.kind == "parts" or not self.summable:
            return {}
        last = len(self.stages) - 1
        made = facet(self.stages[-1], Worded).counts(
            total.value, self.find_parameters(public, last, name), total.n, exact
        )
        return made if "overflowed" in made or "words" not in made else {**made, "unchecked": made["words"]}

    def decode(
        self, total: Total, public: Sequence[Tree], name: str = "", inputs: dict[str, dict[str, Tree]] | None = None
    ) -> Total:
        """Undo the stages on a sum, in reverse order.

        Args:
            total: the sum.
            public: the round parameters.
            name: the aggregate's name.
            inputs: is given the mean input of each stage that fits, by aggregate and place; see ``atoll.core.requests.chain``.
        """
        if not total.encoded or not self.stages or total.kind == "parts":
            return total
        before, after = self._pairs(public, name)
        value = total.value
        for i, stage, known in reversed([*before, *after]):
            if self.summable:  # else each reply was decoded on arrival
                value = stage.decode(value, known, total.n)
            if facet(stage, Fitting).fits and inputs is not None and total.n:
                weight = total.n if stage.on == "summand" else total.weight
                inputs.setdefault(name, {})[str(i)] = T.scale(value, 1.0 / (float(weight) or 1.0))
        return replace(total, value=value)

    def _pairs(self, public: Sequence[Tree], name: str = "") -> tuple[list[Row], list[Row]]:
        rows = [(i, stage, self.find_parameters(public, i, name)) for i, stage in enumerate(self.stages)]
        return [r for r in rows if r[1].on == "value"], [r for r in rows if r[1].on == "summand"]


def _key_of(rng: Rng, row: Row) -> NDArray[np.uint64]:
    """The key of one client's stream for a stage."""
    return np.array([rng.child("stage", row[0]).key], dtype=np.uint64)


def _undo(rows: Sequence[Row], value: Tree, memory: Mapping[str, Tree]) -> Tree:
    for i, stage, known in reversed(rows):
        value = facet(stage, WithMemory).decode_one(value, known, memory.get(str(i)))
    return value


def _addends(rows: Sequence[Row], value: Tree) -> Tree:
    return facet(rows[-1][1], Worded).addends(value) if rows else value


def _finite(value: Tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in T.leaves(value) if getattr(leaf, "dtype", None) is not None)


def _on_the_link(stage: Stage, sent: Tree) -> Tree:
    """An encoding as it crosses the link: a message packs words to their bits."""
    if not (facet(stage, Worded).words or facet(stage, Worded).indexes):
        return sent
    return T.map(
        lambda leaf, bits: leaf if bits is None else Words.of(leaf, bits), sent, facet(stage, Worded).word_bits(sent)
    )


def _make_misplaced_error(stage: Stage, first: Stage, why: str) -> CompositionError:
    name, before = type(stage).__name__, type(first).__name__
    acts = "acts on the client's value and stands behind"
    return CompositionError(f"{name} {acts} {before}, {why}", where="uplink", remedy=f"put {name} before {before}")


# ---------------------------------------------------------------------- round parameters that are fitted


Inputs = Mapping[str, Mapping[str, "Tree"]]
"""Maps an aggregate to the inputs of stages that fit, by place in the chain."""


Told = Mapping[str, Mapping[str, int]]
"""Maps an aggregate to what the chain's last stage counted in a sum; see ``Combined.told``."""


def due(chain: Chain, before: Tree, turn: int, told: Told | None = None) -> bool:
    """Return whether a fit in this turn would change anything: a stage is not fitted yet, its ``refresh`` has passed, or what was counted makes it stale."""
    known = {place for rows in (before or {}).values() for place in rows}
    last = len(chain.stages) - 1
    return any(
        facet(stage, Fitting).fits
        and (
            str(i) not in known
            or turn % facet(stage, Fitting).refresh == 0
            or (i == last and any(_is_stale(chain, rows, name, told) for name, rows in (before or {}).items()))
        )
        for i, stage in enumerate(chain.stages)
    )


def _is_stale(chain: Chain, rows: Mapping[str, Tree], name: str, told: Told | None) -> bool:
    known = rows.get(str(len(chain.stages) - 1))
    return known is not None and facet(chain.stages[-1], Fitting).stale(known, (told or {}).get(name))


def fit_chain(chain: Chain, before: Tree, inputs: Inputs, rng: Rng, turn: int, told: Told | None = None) -> Tree:
    """Return the fitted round parameters of a chain.

    Args:
        chain: the stages.
        before: the parameters so far; ``None`` at the beginning. An entry stays if its stage is fitted and its ``refresh`` rounds have not passed.
        inputs: what the stages got, or will get.
        rng: a public stream.
        turn: the number of the round.
        told: what was counted in the last sum.
    """
    made: dict[str, dict[str, Tree]] = {name: dict(rows) for name, rows in (before or {}).items()}
    for name, given in inputs.items():
        rows = made.setdefault(name, {})
        for place, value in given.items():
            stage = chain.stages[int(place)]
            if place not in rows:
                rows[place] = {**facet(stage, Fitting).fit(value, rng.child(name, place)), "version": 1}
                continue
            last = int(place) == len(chain.stages) - 1
            if turn % facet(stage, Fitting).refresh and not (last and _is_stale(chain, rows, name, told)):
                continue
            counted = (told or {}).get(name) if last else None
            found = facet(stage, Fitting).refit(value, rng.child(name, place), rows[place], counted)
            if found is not None:
                rows[place] = {**found, "version": int(rows[place]["version"]) + 1}
    return {name: rows for name, rows in made.items() if rows}


def inputs_of(chain: Chain, reply: Mapping[str, Aggregate], rng: Rng) -> dict[str, dict[str, Tree]]:
    """Return what stages that fit get for one reply, such as that of a mock client.

    Args:
        chain: the stages, with the parameters so far.
        reply: the reply.
        rng: the stream of the round parameters and of the mock client.
    """
    public = chain.public(rng.child("public"))
    found: dict[str, dict[str, Tree]] = {}
    for name, aggregate in reply.items():
        if not aggregate.encoded or not aggregate.summable:
            continue
        value, weighted = aggregate.value, False
        for i, stage in enumerate(chain.stages):
            if stage.on == "summand" and not weighted:
                value, weighted = aggregate.with_value(value).summand(), True
            if facet(stage, Fitting).fits:
                found.setdefault(name, {})[str(i)] = value
            if i < len(chain.stages) - 1:
                value = _through(stage, value, chain.find_parameters(public, i, name), rng.child("stage", name, i))
    return found


def _through(stage: Stage, value: Tree, known: Tree, rng: Rng) -> Tree:
    """A value after a stage; secret stages add noise and keep the form, so they are passed over."""
    if facet(stage, Guarding).secret:
        return value
    return stage.encode(value, StageContext(known, np.array([rng.key], dtype=np.uint64)))
