"""Privacy events: what was released, as frozen values, and the ledger that records them.

Accountants (the ``privacy`` room) turn events into epsilon; the waist only ensures that an event is recorded *before* anything leaves.
A ledger is append-only: a crash or a resume never removes an entry, because a release cannot be undone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from .errors import CheckpointError, ConfigError, PolicyError
from .persistence.files import append_bytes

__all__ = [
    "AttestationSimulated",
    "Event",
    "Gaussian",
    "Laplace",
    "Ledger",
    "LettersUnencrypted",
    "MasksVirtual",
    "NonPrivate",
    "Promise",
    "Sampled",
    "SeededSecret",
    "register_event",
    "unpack_event",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """A release.

    Attributes:
        unit: the unit of protection: ``"example"``, ``"user"`` or ``"island"``.
        scope: the party whose data were released, or ``"*"`` for all.
        count: number of releases.
    """

    unit: str = "user"
    scope: str = "*"
    count: int = 1
    kind: ClassVar[str] = "event"

    def __post_init__(self) -> None:
        if self.unit not in {"example", "user", "island"}:
            raise ConfigError(
                f"unit={self.unit!r} is not a unit of privacy", remedy="use 'example', 'user' or 'island'"
            )
        if self.count < 1:
            raise ConfigError(f"count={self.count} releases", remedy="use a whole number of at least 1")

    def packed(self) -> dict[str, Any]:
        """The event as plain values."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Sampled(Event):
    """A release of noise about a sample of the units.

    Attributes:
        sampling: the rate at which a unit takes part.
        scheme: how the sample is drawn: ``"poisson"`` (each unit alone, by a coin) or ``"fixed"`` (a set of fixed size, without replacement).
        drawn_by: who knows the draw: ``"public"`` (everybody who knows a job's seed), ``"server"`` (its secret) or ``"party"`` (the party's own
            secret, and its replies do not tell). Sampling protects only against those who do not know the draw.
    """

    sampling: float = 1.0
    scheme: str = "poisson"
    drawn_by: str = "public"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampling <= 1:
            raise ConfigError(f"sampling={self.sampling} is not a rate", remedy="use a number in (0, 1]")
        if self.scheme not in ("poisson", "fixed"):
            raise ConfigError(f"scheme={self.scheme!r}", remedy="use 'poisson' or 'fixed'")
        if self.drawn_by not in ("public", "server", "party"):
            raise ConfigError(f"drawn_by={self.drawn_by!r}", remedy="use 'public', 'server' or 'party'")


@dataclass(frozen=True, kw_only=True)
class Gaussian(Sampled):
    """Gaussian noise of standard deviation ``noise_multiplier * sensitivity``."""

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError(f"noise_multiplier={self.noise_multiplier}", remedy="use a finite number >= 0")


@dataclass(frozen=True, kw_only=True)
class Laplace(Sampled):
    """Laplace noise of scale ``L1 sensitivity / epsilon``: an ``epsilon``-private release."""

    epsilon: float
    kind: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon={self.epsilon}", remedy="use a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class NonPrivate(Event):
    """A release without noise: its epsilon is infinite, and it is recorded too."""

    what: str = ""
    kind: ClassVar[str] = "non-private"


@dataclass(frozen=True, kw_only=True)
class SeededSecret(Event):
    """The simulation drew its "secrets" from a seed: guarantees are void, but results are reproducible."""

    kind: ClassVar[str] = "seeded-secret"


@dataclass(frozen=True, kw_only=True)
class LettersUnencrypted(Event):
    """Only the API hid the simulation's letters (``sealing="virtual"``): anyone with access to its process could read them. It costs no privacy budget."""

    kind: ClassVar[str] = "letters-unencrypted"


@dataclass(frozen=True, kw_only=True)
class MasksVirtual(Event):
    """A simulation left out the masks of its secure sums (``masks="virtual"``): only the API hid single replies. It costs no privacy budget."""

    kind: ClassVar[str] = "masks-virtual"


@dataclass(frozen=True, kw_only=True)
class AttestationSimulated(Event):
    """A secure sum trusted an enclave whose attestation proves nothing (`SimulatedAttestation`). It costs no privacy budget."""

    kind: ClassVar[str] = "attestation-simulated"


@dataclass(frozen=True, kw_only=True)
class Promise(Event):
    """A party binds itself, before it replies: of ``what`` it gives this and nothing else, whatever crashes or is repeated. It costs no privacy budget.

    Attributes:
        what: the matter, such as the seeds of one sum; unique.
        bound: the one value that the party has chosen.
    """

    what: str
    bound: str
    kind: ClassVar[str] = "promise"


_EVENTS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        AttestationSimulated,
        Event,
        Gaussian,
        Laplace,
        LettersUnencrypted,
        MasksVirtual,
        NonPrivate,
        Promise,
        SeededSecret,
    )
}


def register_event(kind: type[Event]) -> type[Event]:
    """Register another kind of event, as a decorator. Never rename or reuse a kind."""
    if _EVENTS.setdefault(kind.kind, kind) is not kind:
        raise ConfigError(f"event kind {kind.kind!r} is taken", remedy="choose another kind")
    return kind


def unpack_event(packed: dict[str, Any]) -> Event:
    """The inverse of ``Event.packed``.

    Raises:
        ConfigError: the kind is unknown.
    """
    kind = _EVENTS.get(packed.get("kind", ""))
    if kind is None:
        raise ConfigError(f"unknown privacy event {packed.get('kind')!r}", remedy="register its class on this side too")
    return kind(**{k: v for k, v in packed.items() if k != "kind"})


class Ledger:
    """An append-only list of events, stored on disk if a path is given.

    A task that a crash interrupted after its spending runs again, but its one release is recorded once: an entry is identified by party, request
    and content, and requests number their spendings. If a whole cohort releases in the same way, this is one line.

    Args:
        path: a JSON-lines file; every entry is flushed to disk before ``append`` returns.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._entries = self._read(path)
        self._known: dict[str, list[tuple[dict[str, Any], set[str]]]] = {}
        self._promises: dict[tuple[str, str], str] = {}
        for line in self._entries:
            self._note(line)

    @staticmethod
    def _read(path: Path) -> list[dict[str, Any]]:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):  # an incomplete last line: its release never happened
            append_bytes(path, b"", at=len(whole))
        entries = []
        for number, line in enumerate(whole.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                entries.append(json.loads(line))
            except ValueError as error:
                raise CheckpointError(
                    f"line {number} of the privacy ledger is not JSON",
                    where=str(path),
                    remedy="restore the file from a backup; a ledger is never repaired by guessing",
                ) from error
        return entries

    def append(self, event: Event, party: str | Sequence[str], request: str = "") -> None:
        """Record an event. It is durable when this returns; only then may anything be released.

        Args:
            event: what will be released.
            party: the party that releases it, or several, which are recorded as one line.
            request: the request that it answers; a repeat of the same request, party and event is recorded once.

        Raises:
            CheckpointError: the file cannot be written.
            PolicyError: a party has promised another value of the same matter.
        """
        if isinstance(event, Promise):
            self._require_kept(event, [party] if isinstance(party, str) else party)
        content = {"request": request, "kind": event.kind, **asdict(event)}
        parties = [party] if isinstance(party, str) else list(party)
        if request:
            known = self._written(content)
            parties = [name for name in parties if name not in known]
        if not parties:
            return
        line = {"party": parties[0] if len(parties) == 1 else parties, **content}
        if self.path is not None:
            append_bytes(self.path, json.dumps(line, sort_keys=True).encode() + b"\n")
        self._entries.append(line)
        self._note(line)

    def _require_kept(self, event: Promise, parties: Sequence[str]) -> None:
        for name in parties:
            if self._promises.get((name, event.what), event.bound) != event.bound:
                raise PolicyError(
                    f"{name} has bound itself to something else in {event.what!r}",
                    where="ledger",
                    remedy="look at the server: it asks for a second value of what is given once",
                )

    def _written(self, content: dict[str, Any]) -> set[str]:
        """The parties that have released exactly this."""
        return next((names for known, names in self._known.get(content["request"], ()) if known == content), set())

    def _note(self, line: dict[str, Any]) -> None:
        content = {name: value for name, value in line.items() if name != "party"}
        names = self._written(content)
        if not names:
            self._known.setdefault(content["request"], []).append((content, names))
        parties = [line["party"]] if isinstance(line["party"], str) else line["party"]
        names.update(parties)
        if line["kind"] == Promise.kind:
            self._promises.update({(name, line["what"]): line["bound"] for name in parties})

    def lines(self, after: int = 0) -> list[dict[str, Any]]:
        """The lines after the first ``after``; ``"party"`` is a name, or a list of names."""
        return self._entries[after:]

    def begin_run(self) -> None:
        """Begin a new run: its requests repeat the names of earlier ones but are separate releases."""
        self._known = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All events of all parties."""
        for line in self._entries:
            party = line["party"]
            if isinstance(party, str):
                yield line
            else:
                yield from ({**line, "party": name} for name in party)

    def __len__(self) -> int:
        return sum(1 if isinstance(line["party"], str) else len(line["party"]) for line in self._entries)
