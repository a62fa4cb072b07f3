"""Capabilities: what one part of a job offers and another needs.

A part declares both as data: ``offers``, capabilities, and ``needs``, pairs of a capability and a reason. The code that composes a job compares them;
no part looks at the kind of another. The capabilities here concern stages, reducers and budgets; each room adds its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CENTRAL_SERVER",
    "COUNTS",
    "DISTINCT_CLIENTS",
    "DROPPABLE",
    "EXCESS_REMOVED",
    "FITTED",
    "FIXED_COHORT",
    "NO_BUFFERS",
    "NUMBERS",
    "PROTECTION",
    "RELEASED_ONLY",
    "REPLIES_ONLY",
    "SERVER",
    "SINGLE_REPLIES",
    "STEPS",
    "UNMEASURED",
    "Capability",
    "Need",
]


@dataclass(frozen=True)
class Capability:
    """A promise that one part can make and another part can depend on.

    Attributes:
        name: a unique name of a few words.
        of: slots of a job whose parts can offer it. Each part in them must offer it, unless ``some`` is set.
        means: what a part that offers it promises.
        lack: what to say of a part that does not offer it, as the end of a sentence: ``"reveals sums only"``.
        instead: what to use instead of such a part.
        some: whether one part that offers it is enough.
    """

    name: str
    of: tuple[str, ...]
    means: str
    lack: str
    instead: str
    some: bool = False


@dataclass(frozen=True)
class Need:
    """One need of a part.

    Attributes:
        capability: the capability that it needs.
        why: what the part does with it, as the end of a sentence: ``"sees single replies"``.
        instead: what to use instead of the part if the capability is missing; may be empty.
    """

    capability: Capability
    why: str
    instead: str = ""


SINGLE_REPLIES = Capability(
    "single replies",
    of=("reducer",),
    means="The server sees each single reply.",
    lack="reveals sums only",
    instead="a plain reducer",
)
COUNTS = Capability(
    "counts of indices",
    of=("reducer",),
    means="Encodings that are indices are added up as counts of each index.",
    lack="adds up numbers, not indices",
    instead="a plain reducer, or SecureIndexing",
)
FITTED = Capability(
    "fitted stages",
    of=("pacing",),
    means="Round parameters of uplink stages are fitted to the last sum or to public rows.",
    lack="does not fit the round parameters of stages",
    instead="Synchronous() or FedBuff()",
)
DROPPABLE = Capability(
    "droppable replies",
    of=("replies", "reducer"),
    means="A reply that the server drops leaves nothing behind at its client.",
    lack="has clients that keep state, which a dropped reply would change without the server knowing",
    instead="an algorithm whose clients keep no state, such as FedAvg",
    some=True,
)
EXCESS_REMOVED = Capability(
    "excess noise removed",
    of=("reducer",),
    means="Noise that clients add for replies which may be missing is taken back once it is known who replied.",
    lack="leaves such noise in the sum",
    instead="SecureAggregation()",
)
DISTINCT_CLIENTS = Capability(
    "distinct clients",
    of=("selection",),
    means="No client takes part twice in a round.",
    lack="may draw a client twice",
    instead="a rule that draws without replacement",
)
NUMBERS = Capability(
    "numbers",
    of=("uplink",),
    means="A stage sends numbers, on which a later stage can act.",
    lack="sends a binary form before that",
    instead="no such stage before it",
)
STEPS = Capability(
    "steps",
    of=("algorithm",),
    means="A round continues from the state of the last one, so late or leftover values still count.",
    lack="adds up what all clients sent, and discards its previous state",
    instead="an algorithm that takes steps, such as FedAvg",
)
SERVER = Capability(
    "server",
    of=("topology",),
    means="Clients reply to a server, which adds up their replies.",
    lack="has no server: neighbours send each other their models",
    instead="topology=Star()",
)
CENTRAL_SERVER = Capability(
    "central server",
    of=("topology",),
    means="One server invites all clients, holds the one global model, and leaves its rounds to the pacing.",
    lack="has rounds of its own",
    instead="topology=Star()",
)
FIXED_COHORT = Capability(
    "fixed cohort",
    of=("pacing", "topology"),
    means="The clients of a round are known before it begins, and it accepts no others.",
    lack="does not know before a round which clients are in it",
    instead="Synchronous() on Star()",
)
PROTECTION = Capability(
    "protection",
    of=("privacy", "algorithm", "algorithm.uplink", "uplink"),
    means="Replies are released under a privacy promise, with events in the ledger.",
    lack="promises no privacy",
    instead="for example privacy=CentralDP(...), or OutputPerturbation around the algorithm",
    some=True,
)
RELEASED_ONLY = Capability(
    "released replies only",
    of=("topology",),
    means="Every message of a client depends only on replies that a privacy mechanism released and on messages from others.",
    lack="does not say that a privacy mechanism is sound on it",
    instead="Star(), or a topology of your own that offers it",
)
REPLIES_ONLY = Capability(
    "replies only",
    of=("selection", "evaluation"),
    means="Clients send nothing besides their replies.",
    lack="has clients send more, which would leave the clients without noise",
    instead="Uniform(), and an evaluation at the server",
)
NO_BUFFERS = Capability(
    "no buffers",
    of=("model",),
    means="No buffers that training writes, such as running statistics, are sent with the parameters.",
    lack="has running statistics of normalisation layers",
    instead="buffers='local', or a model without batch normalisation",
)
UNMEASURED = Capability(
    "no measurements",
    of=("replies",),
    means="A reply has only values that stages act on, and no measurements.",
    lack="sends measurements, which would leave the clients without noise",
    instead="an algorithm that sends updates alone, such as FedAvg()",
)
