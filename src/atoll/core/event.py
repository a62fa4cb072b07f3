"""Privacy events: what was released, as frozen values, and the ledger that records them.

Accountants (the ``privacy`` room) turn events into epsilon; the waist only ensures that an event is recorded *before* anything leaves.
A ledger is append-only: a crash or a resume never removes an entry, because a release cannot be undone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, ClassVar

from .errors import CheckpointError, ConfigError, PolicyError
from .persistence.files import append_bytes, sync_folder

__all__ = [
    "Admitted",
    "AttestationSimulated",
    "ChainedFile",
    "Closed",
    "Covered",
    "Event",
    "Gaussian",
    "HASH",
    "Laplace",
    "Ledger",
    "LettersUnencrypted",
    "MasksVirtual",
    "NonPrivate",
    "Promise",
    "Sampled",
    "SeededSecret",
    "link_hash",
    "register_event",
    "unpack_event",
]


HASH = "hash"
"""The field of a line that binds it to everything before it."""


def link_hash(before: str, line: Mapping[str, Any]) -> str:
    """The hash of a line, in hex: SHA-256 over the hash before it and its own fields.

    Args:
        before: the hash of the line before it; empty for the first.
        line: its fields; its own hash does not count.
    """
    fields = {name: value for name, value in line.items() if name != HASH}
    return hashlib.sha256(json.dumps([before, fields], sort_keys=True).encode()).hexdigest()


class ChainedFile:
    """The lines of a file, read in order and checked against their hashes.

    Lines of older versions have no hash. They may come first only; the first hash binds them too.

    Args:
        path: the file; it is created by the first line.
        what: the file's name in errors, such as ``"the privacy ledger"``.
        whole: remove the remains of a line that a crash cut short. Without it the file is only read.

    Attributes:
        head: hash of the last line that was read or written; empty if there is none.
        count: number of lines.

    Raises:
        CheckpointError: a line is not JSON, or is not the one that was written.
    """

    def __init__(self, path: Path, what: str, *, whole: bool = True) -> None:
        self.path, self.what = path, what
        self.head, self.count = "", 0
        self._size, self._hashed = 0, False
        self.first: list[dict[str, Any]] = []
        if path.exists():
            with self._hold_lock() if whole else contextlib.nullcontext():
                self.first = self._news(repair=whole)

    @contextlib.contextmanager
    def growing(self) -> Iterator[list[dict[str, Any]]]:
        """Keep other processes from writing; yield the lines that they have written since the last look.

        Raises:
            CheckpointError: the file is shorter than it was, a line is damaged, or the file cannot be opened.
        """
        with self._hold_lock():
            yield self._news(repair=True)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line inside ``growing``; durable when this returns, and not written at all if it raises.

        Raises:
            CheckpointError: the disk is full or the file cannot be written.
        """
        head = link_hash(self.head, line)
        text = json.dumps({**line, HASH: head}, sort_keys=True).encode() + b"\n"
        append_bytes(self.path, text)
        self.head, self._hashed = head, True
        self.count += 1
        self._size += len(text)

    def require(self, number: int, digest: str) -> None:
        """Refuse a file of which this line is missing or has another hash.

        Raises:
            CheckpointError: names what is wrong.
        """
        lines = [text for text in self.path.read_bytes().split(b"\n") if text.strip()] if self.path.exists() else []
        if number > self.count or (number and json.loads(lines[number - 1]).get(HASH, "") != digest):
            raise self._make_damage_error(f"was replaced: it does not have the line {number} that was noted down")

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        new = not self.path.exists()
        with self._open_file() as file:
            if new:
                self._sync_name()
            _lock(file)  # until the file is closed
            yield

    def _open_file(self) -> IO[bytes]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("ab")
        except OSError as error:
            raise self._make_opening_error(error) from error

    def _sync_name(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._make_opening_error(error) from error

    def _make_opening_error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.what} cannot be opened: {error.strerror or error}",
            where=str(self.path),
            remedy="free space or fix the permissions; nothing was released",
        )

    def _news(self, *, repair: bool) -> list[dict[str, Any]]:
        if not self.path.exists():
            content = b""
        else:
            with self.path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self._size:
                    raise self._make_damage_error("is shorter than it was")
                file.seek(self._size)
                content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        made = [self._line(text) for text in whole.split(b"\n")[:-1] if text.strip()]
        self._size += len(whole)
        if repair and len(whole) < len(content):  # an incomplete last line: what it says never happened
            append_bytes(self.path, b"", at=self._size)
        return made

    def _line(self, text: bytes) -> dict[str, Any]:
        number = self.count + 1
        try:
            line = json.loads(text)
        except ValueError as error:
            raise self._make_damage_error(f"is damaged: line {number} of {self.what} is not JSON") from error
        if not isinstance(line, dict):
            raise self._make_damage_error(f"is damaged: line {number} has no fields")
        right = link_hash(self.head, line)
        if (self._hashed or HASH in line) and line.get(HASH) != right:
            raise self._make_damage_error(f"was changed: line {number} does not follow the line before it")
        self.head, self.count, self._hashed = right, number, HASH in line
        return {name: value for name, value in line.items() if name != HASH}

    def _make_damage_error(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.what} {how}",
            where=str(self.path),
            remedy="restore the file from a backup; a ledger is never repaired by guessing",
        )


def _lock(file: IO[Any]) -> None:
    try:
        import fcntl
    except ImportError:  # not on POSIX: do not let two processes share a ledger there
        return
    fcntl.flock(file, fcntl.LOCK_EX)


# ---------------------------------------------------------------------- events and their ledger


@dataclass(frozen=True, kw_only=True)
class Event:
    """A release.

    Attributes:
        unit: the unit of protection: ``"example"``, ``"user"`` or ``"island"``.
        scope: the party whose data were released, or ``"*"`` for all.
        count: number of releases.
        free: whether it releases nothing: it is a note, and costs no privacy budget.
    """

    unit: str = "user"
    scope: str = "*"
    count: int = 1
    kind: ClassVar[str] = "event"
    free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.unit not in {"example", "user", "island"}:
            raise ConfigError(
                f"unit={self.unit!r} is not a unit of privacy", remedy="use 'example', 'user' or 'island'"
            )
        if self.count < 1:
            raise ConfigError(f"count={self.count} releases", remedy="use a whole number of at least 1")

    def pack(self) -> dict[str, Any]:
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
    """Gaussian noise of standard deviation ``noise_multiplier * sensitivity``.

    Attributes:
        noise_multiplier: deviation over sensitivity.
        between: the neighbours whose distance the sensitivity is, if it is not that of a replaced unit: ``"add-remove"`` where it is that of a unit which is
            there or not. Accountants count twice the distance where units are replaced; see ``atoll.privacy.events.as_counted``.
    """

    noise_multiplier: float
    between: str = ""
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError(f"noise_multiplier={self.noise_multiplier}", remedy="use a finite number >= 0")
        if self.between not in ("", "add-remove"):
            raise ConfigError(f"between={self.between!r}", remedy="use '' or 'add-remove'")

    def twice_as_far(self) -> Gaussian:
        """The release as a unit sees it that moves it twice as far."""
        return replace(self, noise_multiplier=self.noise_multiplier / 2, between="")


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
    """A release without noise: its epsilon is infinite, and it is recorded too.

    Attributes:
        what: what is released, in words.
        seen_by: who sees it: ``"everyone"``, ``"server"``, or ``"clients"`` (server and clients) where the others see only what a mechanism protects.
    """

    what: str = ""
    seen_by: str = "everyone"
    kind: ClassVar[str] = "non-private"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seen_by not in ("everyone", "server", "clients"):
            raise ConfigError(f"seen_by={self.seen_by!r}", remedy="use 'everyone', 'server' or 'clients'")


@dataclass(frozen=True, kw_only=True)
class SeededSecret(Event):
    """The simulation drew its "secrets" from a seed: guarantees are void, but results are reproducible."""

    kind: ClassVar[str] = "seeded-secret"
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class LettersUnencrypted(Event):
    """Only the API hid the simulation's letters (``sealing="virtual"``): anyone with access to its process could read them. It costs no privacy budget."""

    kind: ClassVar[str] = "letters-unencrypted"
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class MasksVirtual(Event):
    """A simulation left out the masks of its secure sums (``masks="virtual"``): only the API hid single replies. It costs no privacy budget."""

    kind: ClassVar[str] = "masks-virtual"
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class AttestationSimulated(Event):
    """A secure sum trusted an enclave whose attestation proves nothing (`SimulatedAttestation`). It costs no privacy budget."""

    kind: ClassVar[str] = "attestation-simulated"
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Covered(Event):
    """A reply costs nothing: it says what was released and counted before, or tells of no row. It costs no privacy budget.

    Attributes:
        what: what leaves, in words.
    """

    what: str = ""
    kind: ClassVar[str] = "covered"
    free: ClassVar[bool] = True


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
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Admitted(Event):
    """A site has admitted a job that may release this much of a party at most. It costs no privacy budget until it does.

    Attributes:
        name: the job's name, for people.
        most: the releases, as packed events; a later line of the same job replaces it.
        budget: the terms that the site counted by: ``epsilon``, ``delta``, ``unit``, ``adversary``, ``neighbours`` and ``method``; empty without a budget.
    """

    name: str = ""
    most: Sequence[Mapping[str, Any]] = ()
    budget: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "admitted"
    free: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Closed(Event):
    """A job has ended for good at a site: what it was admitted for and has not released is free again."""

    kind: ClassVar[str] = "closed"
    free: ClassVar[bool] = True


_EVENTS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        Admitted,
        AttestationSimulated,
        Closed,
        Covered,
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
    """The inverse of ``Event.pack``.

    Raises:
        ConfigError: the kind is unknown.
    """
    kind = _EVENTS.get(packed.get("kind", ""))
    if kind is None:
        raise ConfigError(f"unknown privacy event {packed.get('kind')!r}", remedy="register its class on this side too")
    return kind(**{k: v for k, v in packed.items() if k != "kind"})


def _fields(event: Event) -> dict[str, Any]:
    """The fields of an event; a copy of those that can be changed."""
    found = {own.name: getattr(event, own.name) for own in fields(event)}
    return found if all(isinstance(value, str | float | int | None) for value in found.values()) else asdict(event)


class Ledger:
    """An append-only list of events, stored on disk if a path is given.

    A task that a crash interrupted after its spending runs again, but its one release is recorded once: an entry is identified by job, party, request
    and content, and requests number their spendings. If a whole cohort releases in the same way, this is one line.

    One ledger may outlive jobs, and several jobs in several processes may share its file: each writes under its own name. Every line has a hash of
    itself and of the line before it, so that none can be changed or removed unnoticed.

    Args:
        path: a JSON-lines file; every entry is flushed to disk before ``append`` returns.
        job: the job that writes; empty for a ledger of one job.
        complete: whether what leaves a party without differential privacy is recorded too, as `NonPrivate`, once a job, party and task.
        readable: only read the file: it stays as it is, and nothing can be appended.

    Attributes:
        guard: called with an event, its parties and its job before it is recorded; raises ``PolicyError`` to refuse it.
        seen_by: who sees what leaves a party without differential privacy; see `NonPrivate`.
        everyone: the parties that a release in the name of all, ``"*"``, is recorded for; empty keeps the ``"*"``.

    Raises:
        CheckpointError: the file is damaged, or was changed.
    """

    def __init__(
        self, path: Path | None = None, job: str = "", *, complete: bool = False, readable: bool = False
    ) -> None:
        self.path, self.job, self.complete = path, job, complete
        self.guard: Callable[[Event, Sequence[str], str], None] | None = None
        self.everyone: Sequence[str] = ()
        self.seen_by = "everyone"
        self._entries: list[dict[str, Any]] = []
        self._known: dict[tuple[str, str], list[tuple[dict[str, Any], set[str]]]] = {}
        self._promises: dict[tuple[str, str, str], str] = {}
        self._covered: dict[tuple[str, str], set[str]] = {}
        self._bare: dict[tuple[str, str], set[str]] = {}
        self._file = None if path is None else ChainedFile(path, "the privacy ledger", whole=not readable)
        for line in () if self._file is None else self._file.first:
            self._take(line)

    @property
    def head(self) -> str:
        """The number of lines and the hash of the last: ``"12:5f..."``. Note it down to see later that nothing before it was changed."""
        return "0:" if self._file is None else f"{self._file.count}:{self._file.head}"

    def require_head(self, head: str) -> None:
        """Refuse a ledger that does not have a line that was noted down earlier as its end.

        Args:
            head: a value of ``head``.

        Raises:
            ConfigError: it is no head.
            CheckpointError: the line is another one or missing.
        """
        number, _, digest = head.partition(":")
        if not number.isdecimal() or self._file is None:
            raise ConfigError(f"{head!r:.100} is not the end of a ledger", remedy="give NUMBER:HASH, as it was shown")
        self._file.require(int(number), digest)

    def append(self, event: Event, party: str | Sequence[str], request: str = "", *, job: str | None = None) -> None:
        """Record an event. It is durable when this returns; only then may anything be released.

        Args:
            event: what will be released.
            party: the party that releases it, or several, which are recorded as one line.
            request: the request that it answers; a repeat of the same request, party and event is recorded once.
            job: the job that releases it; by default the ledger's own.

        Raises:
            CheckpointError: the file cannot be written, or is damaged.
            PolicyError: a party has promised another value of the same matter, or the ledger's guard refuses.
        """
        whose = self.job if job is None else job
        content = self.content(event, request, whose)
        parties = [party] if isinstance(party, str) else list(party)
        if parties == ["*"] and self.everyone and not event.free:
            parties = list(self.everyone)
        if isinstance(event, Promise):
            self._require_kept(event, parties, whose)
        missing = self._missing(content, parties) if request else parties
        if not missing:
            return
        if self._file is None:
            self._write(event, content, missing, whose)
            return
        with self._file.growing() as news:
            for line in news:
                self._take(line)
            if isinstance(event, Promise):
                self._require_kept(event, parties, whose)
            self._book(event, content, parties, whose)

    @staticmethod
    def content(event: Event, request: str, job: str) -> dict[str, Any]:
        """A line without its parties."""
        return {"request": request, "kind": event.kind, **_fields(event), **({"job": job} if job else {})}

    def _book(self, event: Event, content: dict[str, Any], parties: list[str], job: str) -> None:
        missing = self._missing(content, parties) if content["request"] else parties
        if missing:
            self._write(event, content, missing, job)

    def _write(self, event: Event, content: dict[str, Any], missing: list[str], job: str) -> None:
        if self.guard is not None:
            self.guard(event, missing, job)
        line = {"party": missing[0] if len(missing) == 1 else missing, **content}
        if self._file is not None:
            self._file.add(line)
        self._take(line)

    def _require_kept(self, event: Promise, parties: Sequence[str], job: str) -> None:
        for name in parties:
            if self._promises.get((job, name, event.what), event.bound) != event.bound:
                raise PolicyError(
                    f"{name} has bound itself to something else in {event.what!r}",
                    where="ledger",
                    remedy="look at the server: it asks for a second value of what is given once",
                )

    def _missing(self, content: dict[str, Any], parties: Sequence[str]) -> list[str]:
        """The parties among these that have not released exactly this."""
        written = self._find_written(content)
        return [name for name in parties if name not in written] if written else list(parties)

    def _find_written(self, content: dict[str, Any]) -> set[str]:
        rows = self._known.get((content.get("job", ""), content["request"]), ())
        return next((names for known, names in rows if _same(known, content)), set())

    def _take(self, line: dict[str, Any]) -> None:
        self._entries.append(line)
        content = {name: value for name, value in line.items() if name != "party"}
        job, names = line.get("job", ""), self._find_written(content)
        if not names:
            self._known.setdefault((job, content["request"]), []).append((content, names))
        parties = [line["party"]] if isinstance(line["party"], str) else line["party"]
        names.update(parties)
        if line["kind"] == Promise.kind:
            self._promises.update({(job, name, line["what"]): line["bound"] for name in parties})
        kind = _EVENTS.get(line["kind"], Event)
        if kind is NonPrivate:
            self._bare.setdefault((job, line["what"]), set()).update(parties)
        elif not kind.free or kind is Covered:
            asked = content["request"].partition("#")[0].partition("~")[0]  # without the attempt of a session
            self._covered.setdefault((job, asked), set()).update(parties)

    def lines(self, after: int = 0) -> list[dict[str, Any]]:
        """The lines after the first ``after``; ``"party"`` is a name, or a list of names."""
        return self._entries[after:]

    def update(self) -> None:
        """Read what other processes have written.

        Raises:
            CheckpointError: the file is damaged, or was changed.
        """
        if self._file is not None:
            with self._file.growing() as news:
                for line in news:
                    self._take(line)

    def find_uncovered(self, request: str, what: str, parties: Sequence[str]) -> list[str]:
        """Those of these parties of which this request of the ledger's job would release something without privacy, and the ledger does not say so.

        Args:
            request: the request's id.
            what: what leaves, as `NonPrivate` names it.
            parties: the parties.
        """
        done = self._covered.get((self.job, request), set()) | self._bare.get((self.job, what), set())
        return [name for name in parties if name not in done]

    def begin_run(self) -> None:
        """Begin a new run: its requests repeat the names of earlier ones but are separate releases."""
        self._known = {key: rows for key, rows in self._known.items() if key[0] != self.job}
        self._covered = {key: names for key, names in self._covered.items() if key[0] != self.job}
        self._bare = {key: names for key, names in self._bare.items() if key[0] != self.job}

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


def _same(known: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether two lines say the same; sequences that went through JSON are lists."""
    return known == content or _plain(known) == _plain(content)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
