"""Exposures: who sees what of a job, under which assumption. A reducer states its own, a job puts them together, ``atoll explain`` shows them.

A protocol between parties states more, as a `Contract`: each message as a `ProtocolFrame` of known size, and what each role learns of another, by kind. ``atoll explain``
shows it, a site's policy refuses by it (``SitePolicy.learned``), and tests hold a recorded conversation against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .errors import ConfigError

__all__ = ["KINDS", "Contract", "Explanation", "Exposure", "ProtocolFrame"]


KINDS = ("sizes", "count", "sum", "ids", "superset", "similarity", "keys")
"""What a party can learn, in one word; a site's policy (``SitePolicy.learned``) names some of these."""


@dataclass(frozen=True)
class Exposure:
    """What one kind of party sees.

    Attributes:
        who: the party, such as ``server``, ``client``, or a helper's role.
        sees: what it learns of the clients' data.
        assuming: what must hold so that it is no more; empty if nothing must.
        kind: what that is in one word of `KINDS`, for policies; empty where nobody has said.
        of: whose data it is about; empty for all.
    """

    who: str
    sees: str
    assuming: str = ""
    kind: str = ""
    of: str = ""

    def __post_init__(self) -> None:
        if self.kind and self.kind not in KINDS:
            raise ConfigError(f"kind={self.kind!r}", where="Exposure", remedy=f"use one of {', '.join(KINDS)}, which policies know")  # fmt: skip

    def facts(self) -> dict[str, str]:
        """The exposure as plain values; ``kind`` and ``of`` only where they are set."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("kind", "of")}


@dataclass(frozen=True)
class ProtocolFrame:
    """One part of a protocol: rows of one width, from one role to another, in one or more messages on the channel of its name.

    Attributes:
        name: the channel.
        source: the role that sends it.
        target: the role that receives it.
        rows: number of rows, which follows from the sizes of the sets and the settings alone.
        width: bytes of a row.
        holds: what a row is, for people.
    """

    name: str
    source: str
    target: str
    rows: int
    width: int
    holds: str

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, without the headers of messages."""
        return self.rows * self.width


@dataclass(frozen=True)
class Contract:
    """What a protocol sends, and what its roles learn from it.

    Attributes:
        protocol: its name.
        frames: its messages, in order.
        learns: what each role learns of another.
    """

    protocol: str
    frames: tuple[ProtocolFrame, ...] = ()
    learns: tuple[Exposure, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return sum(frame.nbytes for frame in self.frames)

    def find_refused(self, whose: str, allowed: Iterable[str]) -> Exposure | None:
        """What others learn of a party that its list of kinds does not allow; ``None`` if it allows all.

        Args:
            whose: the party.
            allowed: kinds, with ``*`` and ``?``.
        """
        patterns = tuple(allowed)
        for one in self.learns:
            told = one.of in ("", whose) and one.who != whose
            if told and not any(fnmatchcase(one.kind, pattern) for pattern in patterns):
                return one
        return None

    def compare_recorded(self, recorded: Iterable[tuple[str, str, str, Any]]) -> list[str]:
        """Hold a recorded conversation against the frames: the same channels, roles and bytes of arrays. Return a line for each that differs.

        Args:
            recorded: source, target, channel and message of each message; a message is an array.
        """
        found: Counter[tuple[str, str, str]] = Counter()
        for source, target, channel, message in recorded:
            found[channel, source, target] += np.asarray(message).nbytes
        said: Counter[tuple[str, str, str]] = Counter()
        for frame in self.frames:
            said[frame.name, frame.source, frame.target] += frame.nbytes
        return [
            f"{found[key]} bytes of {key[0]!r} from {key[1]} to {key[2]}, and the contract says {said[key]}"
            for key in dict.fromkeys([*said, *found])
            if found[key] != said[key]
        ]


@dataclass(frozen=True)
class Explanation:
    """What is known of a job before anyone is contacted.

    Attributes:
        title: the job.
        clients: number of clients in a round.
        exposures: who sees what.
        costs: what a client sends and receives in a round, as far as it is known: plain facts by name.
        notes: what else to know, such as what has no privacy guarantee.
        frames: the messages of its protocol, if it has one between parties.
    """

    title: str
    clients: int
    exposures: tuple[Exposure, ...] = ()
    costs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    frames: tuple[ProtocolFrame, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The explanation as plain values."""
        frames = [{**asdict(frame), "bytes": frame.nbytes} for frame in self.frames]
        return {
            "job": self.title,
            "clients": self.clients,
            "exposures": [exposure.facts() for exposure in self.exposures],
            "costs": dict(self.costs),
            "notes": list(self.notes),
            **({"frames": frames} if frames else {}),
        }
