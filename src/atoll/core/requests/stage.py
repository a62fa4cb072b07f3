"""Stages: steps that an update goes through on its way out — clip, weight, quantise, add noise — and that the sum undoes.

A stage has a party half (``encode``) and a server half (``decode``). Stages form a chain, applied in order at the party and undone in reverse:
*value* stages see the client's own value, then the aggregate's weight is applied, then *summand* stages see the value to add up.
``decode`` runs once on the sum. For a stage that is not summable it runs on each reply, and a secure reducer refuses such a stage.

Because a value stage's encodings are weighted before they are added up, ``sum_k w_k encode(x_k)``, a summable one must have a *linear* decoder. An
affine one (with each client's own scale and offset) is not summable, unless the parameters are public and the decoder is linear.

A *secret* stage draws on the party's secret, such as noise for differential privacy. It declares beforehand what each reply releases (``events``), and
those events are in the ledger before it encodes. The party keeps what it drew until the round is safe, so that a repeated request
gets the same reply. If a stage declares events, measurements besides the value stay at the party: only what it protects leaves.

The encoding of a stage may have *words*: unsigned integers of ``p`` bits each (``word_bits``). Those of a summable stage add up modulo ``2^p``, so masks and
shares hide them exactly; such a stage acts on summands. A stage whose encodings are *indices* adds up as counts of each index (``indexes``, ``addends``).

The round parameters of a stage that *fits* (a scale, a codebook) follow from the last sum or from a mock client on public data: ``fit`` makes them, and the
program keeps them, with a version, in its checkpoints (``atoll.core.requests.chain``).

A stage may keep *memory* at the party, such as the residual of quantisation: ``remember`` takes the memory of the last reply of this kind and returns
the new one. It is private state with its own slot, and a reply that is kept out does not change it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from ..addresses import declared_name
from ..algebra import tree as T
from ..algebra.rng import Rng, child_keys
from ..algebra.tree import Tree
from ..capability import (
    COUNTS,
    DISTINCT_CLIENTS,
    FITTED,
    NO_BUFFERS,
    NUMBERS,
    PROTECTION,
    RELEASED_ONLY,
    REPLIES_ONLY,
    SERVER,
    SINGLE_REPLIES,
    STEPS,
    UNMEASURED,
    Capability,
    Need,
)
from ..errors import ConfigError
from ..event import Event
from ..facets import Facet, facet, keep_old_form
from ..validation import Checked
from .island import Secret

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Estimated",
    "Fitting",
    "Guarding",
    "Identity",
    "SEED_BYTES",
    "Seeds",
    "Stage",
    "StageContext",
    "WithMemory",
    "Worded",
    "derive_seeds",
    "seeds_for",
]


SEED_BYTES = 32
"""Bytes of the secret seed that a party draws for one reply."""


@dataclass(frozen=True)
class StageContext:
    """What a stage may use at one party, or at each party of a block.

    Attributes:
        public: the round parameters, made by ``Stage.public``.
        keys: the key of each party's reproducible stream, ``(parties,)``. The server can derive it.
        seeds: ``SEED_BYTES`` secret bytes of each party, ``(parties, 32)``, uint8; ``None`` for a stage that does not declare ``secret``.
        sensitivity: largest L2 norm of a party's value before this stage; ``None`` without a bound.
        replies: every sum that is used has at least this many replies of equal weight.
        hidden: whether replies can be seen only in such a sum.
        excess_added: whether the half of a reducer adds the noise that the reducer can take back; see ``Stage.excess``.
    """

    public: Tree = None
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, dtype=np.uint64))
    seeds: NDArray[np.uint8] | None = None
    sensitivity: float | None = None
    replies: int = 1
    hidden: bool = False
    excess_added: bool = False

    @classmethod
    def of(cls, rng: Rng, public: Tree = None, **more: Any) -> StageContext:
        """The context of one party with this stream."""
        return cls(public, np.array([rng.key], dtype=np.uint64), **more)

    @property
    def rng(self) -> Rng:
        """The reproducible stream of the (first) party."""
        return Rng(int(self.keys[0]))

    @property
    def secret(self) -> Secret:
        """The secret stream of the (first) party."""
        return self.secrets()[0]

    def secrets(self) -> list[Secret]:
        """The secret stream of each party. Each call starts it again.

        Raises:
            ConfigError: the stage does not declare that it draws on secrets.
        """
        if self.seeds is None:
            raise ConfigError(
                "a stage draws on the party's secret but does not declare it",
                where="uplink",
                remedy="set `secret: ClassVar[bool] = True` on its class",
            )
        return [Secret(row.tobytes()) for row in self.seeds]

    def row(self, i: int) -> StageContext:
        """The context of party ``i`` of a block."""
        seeds = None if self.seeds is None else self.seeds[i : i + 1]
        return replace(self, keys=self.keys[i : i + 1], seeds=seeds)


def seeds_for(seeds: NDArray[np.uint8] | None, purpose: str) -> NDArray[np.uint8] | None:
    """Seeds for one purpose that reveal nothing about those for another: keyed BLAKE2b of the purpose's name, ``(parties, 32)``."""
    if seeds is None:
        return None
    label = purpose.encode()
    made = [hashlib.blake2b(label, key=row.tobytes(), digest_size=SEED_BYTES).digest() for row in seeds]
    return np.frombuffer(b"".join(made), dtype=np.uint8).reshape(-1, SEED_BYTES)


# ---------------------------------------------------------------------- secret seeds


@dataclass(frozen=True, eq=False)
class Seeds:
    """A secret seed of each party for one request.

    Attributes:
        positions: positions of the parties, sorted.
        rows: their seeds, ``(parties, SEED_BYTES)``, uint8.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.uint8]

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The seeds of these parties, one row each."""
        found: NDArray[np.uint8] = self.rows[np.searchsorted(self.positions, positions)]
        return found

    def pack(self) -> dict[str, Any]:
        """The seeds as a message."""
        return {"positions": self.positions, "rows": self.rows}

    @classmethod
    def unpack(cls, packed: Any) -> Seeds:
        """The inverse of ``pack``."""
        return cls(np.asarray(packed["positions"]), np.asarray(packed["rows"]))


def derive_seeds(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint8]:
    """Seeds derived from the parties' keys and a number, ``(parties, 32)``: for reproducible simulations, whose guarantees are void."""
    words = np.stack([child_keys(keys, "uplink", seed, i) for i in range(4)], axis=1)
    return words.astype("<u8").view(np.uint8)


class WithMemory(Facet):
    """Memory at the party: what it kept of its last reply of this kind changes the next.

    Attributes:
        remembers: whether it keeps memory at the party.
    """

    remembers: ClassVar[bool] = False

    def fresh(self, value: Tree) -> Tree:
        """The memory before a party's first reply, in the form (structure, dtypes, shapes) of what ``remember`` returns."""
        del value
        return None

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """The party half of a stage with memory: return the encoded value, and the new memory."""
        return cast("Stage", self).encode(value, context), memory

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """The same for a block of clients; memory has a leading client axis too."""
        if not facet(self, WithMemory).remembers:
            return cast("Stage", self).encode_block(block, context), memory
        rows = [self.remember(_row(block, c), _row(memory, c), context.row(c)) for c in range(len(context.keys))]
        sent, kept = ([row[i] for row in rows] for i in (0, 1))
        return _stack_rows(sent), _stack_rows(kept)

    def decode_one(self, sent: Tree, public: Tree, memory: Tree) -> Tree:
        """Decode one reply as the server does.

        A stage whose decoder needs earlier replies (a learned shift) takes them from ``memory``, the client's own before it encoded: in a
        simulation this memory is also the server's copy. A real server keeps a copy for each client and updates it with what the client
        sends, which is all that the client's own update depends on.
        """
        del memory
        return cast("Stage", self).decode(facet(self, Worded).addends(sent), public, 1)


class Worded(Facet):
    """Encodings that add up as something else than numbers: words modulo ``2^p``, or indices as counts.

    Attributes:
        words: whether its encoding has words; see ``word_bits``.
        indexes: whether its encodings are indices, which add up as counts; see ``addends``.
    """

    words: ClassVar[bool] = False
    indexes: ClassVar[bool] = False

    def word_bits(self, sent: Tree) -> Tree:
        """The bits of an entry of each leaf of an encoding on the link; ``None`` for a leaf of numbers.

        A leaf with bits has unsigned integers. They cross the link, and reach a reducer that hides replies, as `atoll.core.message.Words`. Those of a summable
        stage add up modulo ``2^bits``, and ``decode`` takes a sum that is or is not reduced. A plain sum adds them up without a modulus, so that overflows can be
        counted. ``None`` marks numbers, which a secure reducer turns into words of its own. By default all are numbers.

        Args:
            sent: an encoding, of one party or of a block; only its form matters.
        """
        return T.map(lambda leaf: None, sent)

    def addends(self, sent: Tree) -> Tree:
        """The form in which encodings add up; for a stage that ``indexes``, rows of zeros with a one at each index. Also for a block."""
        return sent

    def counts(self, total: Tree, public: Tree, n: int, exact: bool) -> dict[str, int]:
        """Count entries of a sum for the round's row: ``"words"``, those among them ``"clamped"`` at parties and ``"overflowed"`` in the sum; leave the last out if it cannot be known.

        ``"word_bits"``, if it is there, is the length of their words.

        Args:
            total: the sum of the encodings.
            public: the round parameters.
            n: number of replies in the sum.
            exact: whether words were added up without a modulus, as a simulation without masks can, so that overflows can be counted.
        """
        del total, public, n, exact
        return {}


class Fitting(Facet):
    """Round parameters that are fitted to the last sum, or to a mock client on public rows.

    Attributes:
        fits: whether its round parameters are fitted to a value; see ``fit``.
        adapts: whether its round parameters follow what was counted in the last sum too; see ``refit``.
        refresh: rounds between two fits.
    """

    fits: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    refresh = 1

    def fit(self, example: Tree, rng: Rng) -> dict[str, Tree]:
        """Return round parameters for values like this one; ``public`` then has them, with their ``"version"``, instead of what ``Stage.public`` returns.

        Args:
            example: what ``encode`` gets at one party: the mean of the last sum, or that of a mock client on public data.
            rng: a public stream.
        """
        raise NotImplementedError

    def stale(self, known: Tree, told: Mapping[str, int] | None) -> bool:
        """Whether a fit is due before ``refresh`` rounds have passed, because of what was counted in the last sum.

        Args:
            known: the round parameters so far.
            told: what was counted; see ``Combined.told``. ``None`` for nothing.
        """
        del known, told
        return False

    def refit(self, example: Tree, rng: Rng, known: Tree, told: Mapping[str, int] | None) -> dict[str, Tree] | None:
        """Return the round parameters that follow those so far, or ``None`` if these stay; by default those of ``fit``.

        Args:
            example: as for ``fit``.
            rng: a public stream.
            known: the round parameters so far.
            told: what was counted in the last sum; see ``Combined.told``.
        """
        del known, told
        return self.fit(example, rng)


class Guarding(Facet):
    """What a stage promises of privacy, and what it draws on for it.

    Attributes:
        secret: whether it draws on the party's secret (``context.secret``).
    """

    secret: ClassVar[bool] = False

    @property
    def excess(self) -> Any:
        """Noise that the half of a reducer adds in parts (``Task.adds_excess``), so that the reducer can take back the parts that a sum does not need.

        ``None`` is no such noise. Under any other reducer the stage adds all of it itself: ``context.excess_added`` says which.
        See `atoll.secure.noise.ExcessNoise`.
        """
        return None

    def sensitivity(self, before: float | None) -> float | None:
        """Largest L2 norm of a client's value after this stage, given that before it; ``None`` without a bound."""
        del before
        return None

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """The events that one encoded value releases; empty without a privacy promise.

        Args:
            sensitivity: largest L2 norm of a client's value before this stage.

        Raises:
            CompositionError: the promise needs a bound, but there is none.
        """
        del sensitivity
        return ()

    @property
    def protects(self) -> bool:
        """Whether the stage promises privacy for its value, once the value is bounded."""
        return bool(facet(self, Guarding).events(1.0))

    @property
    def guards(self) -> bool:
        """Whether nothing may leave beside the value that it acts on: a stage that promises privacy, or one before noise that is added elsewhere."""
        return facet(self, Guarding).protects


class Estimated(Facet):
    """What is known of an encoding beforehand: its error, and its largest size."""

    @property
    def lossless(self) -> bool:
        """Whether decoding returns the value itself: without the stage a message is longer, and nothing else changes."""
        return False

    def most_bits(self, value: Tree) -> int | None:
        """The largest size of the encoded value in bits, if it is known beforehand."""
        return cast("Stage", self).wire_bits(value)

    def omega(self, value: Tree) -> float | None:
        """The smallest known ``w`` with ``E ||C(x) - x||^2 <= w ||x||^2`` for values of this form, for an unbiased stage; ``None`` is unknown."""
        del value
        return None

    def delta(self, value: Tree) -> float | None:
        """The largest known ``d`` with ``E ||C(x) - x||^2 <= (1 - d) ||x||^2`` for values of this form (a contraction); ``None`` is unknown."""
        del value
        return None


@dataclass(frozen=True)
class Stage(Checked):
    """Base class of all stages; it changes nothing.

    Attributes:
        on: ``"value"`` stages act before weighting, ``"summand"`` stages after it.
        summable: whether ``decode(sum of encodings)`` equals the sum of the decoded values.
        linear: whether encoding is linear in the value.
        unbiased: whether decoding is correct on average.
        packs: whether its encoding is a binary form, which no later stage can treat as numbers.
    """

    on: ClassVar[Literal["value", "summand"]] = "value"
    summable: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    packs: ClassVar[bool] = False

    def public(self, rng: Rng) -> Tree:
        """Round parameters that every party gets and that are public: a scale, a seed, a codebook."""
        del rng
        return None

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """The party half: encode one client's value."""
        del context
        return value

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """The party half for a block of clients with a leading client axis; override it if a loop would be slow."""
        return _stack_rows([self.encode(_row(block, c), context.row(c)) for c in range(len(context.keys))])

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """The server half: decode the sum of ``n`` replies, or one (``n = 1``)."""
        del public, n
        return total

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """The server half for each reply of a block; ``memory`` is what the clients remembered before they encoded, see ``decode_one``."""
        count = len(T.leaves(block)[0])
        keeping = facet(self, WithMemory)
        before = [_row(memory, c) if keeping.remembers else None for c in range(count)]
        return _stack_rows([keeping.decode_one(_row(block, c), public, before[c]) for c in range(count)])

    def wire_bits(self, value: Tree) -> int | None:
        """Exact size of the encoded value in bits; ``None`` if it must be measured."""
        return sum(8 * int(math.prod(np.shape(leaf))) * int(leaf.dtype.itemsize) for leaf in T.leaves(value))

    # ------------------------------------------------------------------ what it can be combined with

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a job must offer, derived from the promises above; add your own needs to ``super().needs``."""
        made: list[Need] = []
        if not facet(self, Estimated).lossless:
            made.append(Need(SERVER, "acts between clients and a server", "Gossip(compress=...)"))
        if facet(self, Worded).indexes:
            why = "sends indices, which add up only as counts"
            made.append(Need(COUNTS, why, "ScalarQuantizer"))
        elif not self.summable:
            why = "is not summable: its encodings cannot be added up"
            made.append(Need(SINGLE_REPLIES, why, "a summable stage"))
        if facet(self, Fitting).fits:
            made.append(Need(FITTED, "has round parameters that follow the sums", "fixed parameters, such as limit="))
        if facet(self, WithMemory).remembers:
            made.append(Need(DISTINCT_CLIENTS, "remembers one reply of each client", "a stage without memory"))
            made.append(Need(STEPS, "adds last round's leftovers", "a stage without memory"))
        return (*made, *(_GUARDED if facet(self, Guarding).guards else ()))

    @property
    def offers(self) -> frozenset[Capability]:
        """What the stage offers to the other parts of a job."""
        numbers = frozenset() if self.packs and self.on == "value" else frozenset({NUMBERS})
        return numbers | {PROTECTION} if facet(self, Guarding).protects else numbers

    def covers(self, other: Stage) -> bool:
        """Whether this stage is at least as strict as another, for a site that requires the other."""
        return self == other

    @property
    def name(self) -> str:
        """The stage's name in messages and records."""
        return declared_name(type(self))

    def settings(self) -> dict[str, Any]:
        """The stage's fields, as plain values; an inner stage becomes ``{"stage": name, "settings": ...}``."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def spec(self) -> dict[str, Any]:
        """The stage as a message has it: its name and plain settings."""
        return {"stage": self.name, "settings": self.settings()}

    @staticmethod
    def of(spec: Mapping[str, Any], find: Callable[[str], type[Stage]]) -> Stage:
        """The inverse of ``spec``; ``find`` looks names up."""
        settings = {k: Stage.of(v, find) if _is_spec(v) else v for k, v in spec["settings"].items()}
        return find(spec["stage"])(**settings)


keep_old_form(Stage, WithMemory, Worded, Fitting, Guarding, Estimated)

_PROMISE = "promises privacy for what it is given, and for nothing beside that"
_GUARDED = tuple(
    Need(capability, _PROMISE, "no noise") for capability in (RELEASED_ONLY, NO_BUFFERS, REPLIES_ONLY, UNMEASURED)
)


def _row(block: Tree, c: int) -> Tree:
    """Client ``c`` of a block."""
    return T.map(lambda leaf: leaf[c], block)


def _stack_rows(rows: list[Tree]) -> Tree:
    """Stack the clients of a block; NumPy leaves may be scalars."""
    return T.map(lambda *leaves: T.stack(leaves), *rows)


def _plain(value: Any) -> Any:
    return value.spec() if isinstance(value, Stage) else value


def _is_spec(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"stage", "settings"}


@dataclass(frozen=True)
class Identity(Stage, Guarding):
    """A stage that changes nothing."""

    def sensitivity(self, before: float | None) -> float | None:
        """Return the sensitivity before it."""
        return before
