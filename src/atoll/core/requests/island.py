"""Islands: what a task sees: its own data, state and randomness, and nothing of other parties."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError, PolicyError
from ..event import Event
from ..persistence.named_results import require_name, slot_of
from ..sealing import Letter, Letterbox, Row, Sealing, hash_parts
from .disclosure import RowRules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algebra.aggregate import Totals
    from .party import Party

__all__ = ["Island", "Secret", "Uplink"]


_THREAD = threading.local()
_NO_RULES = RowRules()


class Uplink(Protocol):
    """What stages rely on, as the party half of a reducer sees it; a `Chain` is one.

    Attributes:
        replies: every sum that is used has at least this many replies.
        excess: noise that the reducer can take back, see ``Stage.excess``; ``None`` for none.
    """

    replies: int
    excess: Any


class Secret:
    """Entropy that only this party knows: the only source of noise, masks, shares and keys.

    Args:
        seed: ``None`` draws from the operating system, and stretches the secret bytes. In a simulation a number makes "secrets"
            reproducible, which voids every guarantee; the ledger then records it.
    """

    __slots__ = ("_block", "_seed", "drawn")

    def __init__(self, seed: int | bytes | None = None) -> None:
        self._seed = seed.to_bytes(8, "little") if isinstance(seed, int) else seed
        self._block = 0
        self.drawn = False

    def restart(self, other: Secret) -> None:
        """Go on with the stream of another secret, for all that hold this one."""
        self._seed, self._block = other._seed, other._block

    @property
    def seeded(self) -> bool:
        """Whether the secrets follow from a seed, so that a library with entropy of its own must be given theirs."""
        return self._seed is not None

    def bytes(self, n: int) -> bytes:
        """Return ``n`` secret bytes."""
        self.drawn = True
        if self._seed is None:
            return os.urandom(n)
        blocks = -(-n // 64)
        out = b"".join(
            hashlib.blake2b((self._block + i).to_bytes(8, "little"), key=self._seed, digest_size=64).digest()
            for i in range(blocks)
        )
        self._block += blocks
        return out[:n]

    def uint64(self, shape: int | tuple[int, ...]) -> NDArray[np.uint64]:
        """Uniform 64-bit integers."""
        count = int(np.prod(shape))
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").reshape(shape).copy()

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1) with 53 random bits."""
        return np.asarray((self.uint64(shape) >> np.uint64(11)) * 2.0**-53)

    def generator(self) -> np.random.Generator:
        """A NumPy generator (Philox) that begins at 256 fresh bits."""
        seed = np.random.SeedSequence(int.from_bytes(self.bytes(32), "little"), pool_size=8)
        return np.random.Generator(np.random.Philox(seed))

    def stream(self) -> np.random.Generator:
        """A NumPy generator (Philox) with a key and a counter of 384 fresh bits; faster to make than ``generator``, whose numbers differ."""
        words = self.uint64(6)
        return np.random.Generator(np.random.Philox(counter=words[:4], key=words[4:]))

    def normal(self, count: int) -> NDArray[np.float64]:
        """Standard normal numbers, those of a fresh ``stream``; few of them take a fifth of its time, most of which goes into making a generator."""
        words, kept = self.uint64(6), _THREAD.__dict__
        if "normal" not in kept:
            kept["normal"] = np.random.Generator(np.random.Philox(0))
        generator: np.random.Generator = kept["normal"]
        state = {"counter": words[:4], "key": words[4:]}
        generator.bit_generator.state = {
            "bit_generator": "Philox", "state": state, "buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0
        }  # fmt: skip
        return generator.standard_normal(count)

    def integer(self, below: int) -> int:
        """A uniform integer in ``[0, below)``, of any size, without bias (rejection)."""
        if below < 1:
            raise ConfigError(f"below={below}", remedy="use a whole number of at least 1")
        bits = (below - 1).bit_length()
        count = -(-bits // 8)
        while True:
            value = int.from_bytes(self.bytes(count), "little") & ((1 << bits) - 1)
            if value < below:
                return value


class Island:
    """A party's place: where a task runs.

    Attributes:
        party: the party.
        data: the party's own data.
        rng: the reproducible stream of this request at this party.
        secret: the party's entropy; see ``Secret``.
        state: the party's private state, kept between rounds; assign to it to change it.
        remote: whether a server of another organisation asks.
        once: whether the party's policy refuses a second sum of the same task and message over another set of parties.
        rules: what the party's policy says about numbers that describe its rows.
    """

    __slots__ = (
        "_asked",
        "_data",
        "_ephemeral",
        "_keep",
        "_key",
        "_ledger",
        "_left",
        "_letters",
        "_matter",
        "_named",
        "_notes",
        "_promised",
        "_put",
        "_record",
        "_request",
        "_sealed",
        "_secret",
        "_secret_seed",
        "_spendings",
        "_state",
        "_state_assigned",
        "_state_loaded",
        "_step",
        "_store",
        "_totals",
        "_uplink",
        "once",
        "party",
        "remote",
        "rules",
    )  # fmt: skip

    def __init__(
        self,
        party: Party,
        data: Callable[[], Any],
        key: int,
        *,
        request: str = "",
        state: Callable[[], Tree] | None = None,
        ledger: Callable[[Event, str, str], None] | None = None,
        letters: Letterbox | None = None,
        secret_seed: int | None = None,
        totals: Callable[[int | None], Awaitable[Totals]] | None = None,
        asked: Callable[[], str] = str,
        uplink: Callable[[], Uplink | None] = lambda: None,
        named: Callable[[str], Tree] | None = None,
        keep: Callable[[str, Tree], None] = lambda name, value: None,
        put: Callable[[str, Tree], None] = lambda name, value: None,
        record: Callable[[bytes], bytes | None] = lambda matter: None,
        matter: Callable[[], bytes] = bytes,
        remote: bool = False,
        once: bool = False,
        rules: RowRules = _NO_RULES,
    ) -> None:
        self.rules = rules
        self.party = party
        self._data = data
        self._key = key
        self._request = request
        self._store = state
        self._state: Tree = None
        self._state_loaded = state is None
        self._state_assigned = False
        self._ledger = ledger
        self._secret: Secret | None = None
        self._secret_seed = secret_seed
        self._letters = letters or Letterbox(party.name, request)
        self._ephemeral: Secret | None = None
        self._notes: list[Tree] = []
        self._totals = totals
        self._asked = asked
        self._uplink = uplink
        self._spendings = 0
        self._named = named
        self._keep = keep
        self._put = put
        self._record = record
        self._matter = matter
        self.remote = remote
        self.once = once
        self._promised: dict[bytes, bytes] = {}
        self._left: dict[str, Tree] = {}
        self._sealed = False
        self._step = 0

    @property
    def name(self) -> str:
        """The party's name."""
        return self.party.name

    @property
    def request(self) -> str:
        """The path of the request that this task answers: scope, task and label."""
        return self._request

    @property
    def asked(self) -> str:
        """A fingerprint of the program's request that the party half of a reducer wraps: its task, message and round parameters; ``""`` without one.

        It is the same at every party that was asked the same, see ``Request.fingerprint``. A reducer that binds its masks to it gives a server that sends
        parties different models nothing but noise.
        """
        return self._asked()

    @property
    def uplink(self) -> Uplink | None:
        """What the stages of the program's request rely on, for the party half of a reducer that wraps it; ``None`` without one."""
        return self._uplink()

    @property
    def data(self) -> Any:
        """The party's own data."""
        return self._data()

    @property
    def rng(self) -> Rng:
        """The reproducible stream of this request at this party."""
        return Rng(self._key)

    @property
    def secret(self) -> Secret:
        """The party's entropy; see ``Secret``."""
        if self._secret is None:
            self._secret = self._entropy("secret")
        return self._secret

    def _entropy(self, use: str) -> Secret:
        if self._secret_seed is None:
            return Secret()
        steps = (self._step,) if self._step else ()
        return Secret(Rng(self._key).child(use, self._secret_seed, *steps).key)

    @property
    def state(self) -> Tree:
        """The party's private state, ``None`` until it is first assigned."""
        if not self._state_loaded and self._store is not None:
            # Copy the containers, so that a task that modifies them changes nothing until it assigns the state.
            self._state = T.map(lambda leaf: leaf, self._store())
            self._state_loaded = True
        return self._state

    @state.setter
    def state(self, value: Tree) -> None:
        self._state = value
        self._state_loaded = self._state_assigned = True

    def spend(self, event: Event) -> None:
        """Record a privacy event before anything is released; it is durable when this returns."""
        if self._ledger is None:
            raise PolicyError(
                f"{self.name} has no privacy ledger", where=self._request, remedy="run the task through a federation"
            )
        self._ledger(event, self.name, f"{self._request}#{self._spendings}")
        self._spendings += 1

    def promise(self, what: str, bound: str | bytes) -> None:
        """Bind this party: of ``what`` it gives this and nothing else, whatever crashes, is repeated, or is asked under another name.

        The promise is in the party's own record before the reply leaves. Unlike ``state`` it never returns to an earlier checkpoint, and no server can make the party forget it.

        Args:
            what: the matter, such as the set of parties of one sum; unique within the job.
            bound: the one value.

        Raises:
            PolicyError: the party has bound itself to another value before.
        """
        matter, value = hash_parts("promise", self.name, what), hash_parts("bound", bound)
        known = self._promised.get(matter) or self._record(matter)
        if known is not None and known != value:
            raise PolicyError(
                f"{self.name} has bound itself to something else in {what!r}",
                where="record",
                remedy="look at the server: it asks for a second value of what is given once",
            )
        self._promised[matter] = value

    @property
    def promised(self) -> tuple[Row, ...]:
        """What the task has promised."""
        return tuple(self._promised.items())

    @property
    def matter(self) -> bytes:
        """A hash of the program's request that this one wraps, whatever its id: task, message and round parameters. See ``Request.matter``.

        Empty without one, and where stages make the reply differentially private: there the ledger counts every sum.
        """
        return self._matter()

    def organisation(self, name: str) -> str:
        """Whose key a party's letters are sealed with: its site between organisations, in a simulation the party itself."""
        return self._letters.sealing.organisation(name)

    @property
    def sum(self) -> str:
        """The path of the sum that the request belongs to; ``""`` without one."""
        return self._letters.sum

    # ------------------------------------------------------------------ letters

    @property
    def sealing(self) -> Sealing:
        """How letters are sealed here; ``sealing.real`` says whether they are encrypted."""
        return self._letters.sealing

    @property
    def inbox(self) -> dict[str, Tree]:
        """The opened letters to this party: maps a sender's name to its payload, in order of name.

        Raises:
            LetterError: a letter was altered, is from another sender or request, or is for another party.
        """
        return self._letters.content

    @property
    def letters(self) -> dict[str, Letter]:
        """The same letters unopened, for a protocol that continues without letters that do not open: ``island.open(sender, letter)``."""
        return self._letters.arrived

    def bind_letters(self, agreed: bytes, written_in: str = "") -> None:
        """Authenticate something with each letter that is sealed or opened from now on: a letter opens only where it is the same.

        Args:
            agreed: such as a hash of what the parties have agreed on; it does not travel.
            written_in: name of the task whose letters are opened; ``""`` opens those of any task of the sum.
        """
        self._letters.bind(agreed, written_in)

    def post(self, to: str, payload: Tree) -> None:
        """Put a letter for another party into the reply, sealed according to the world's ``sealing``. The relay holds it until the senders are fixed.

        Raises:
            ConfigError: no party of the job has this name, or a letter to it was posted before.
            PolicyError: the island's policy does not release the payload.
        """
        self._letters.post(to, payload, self._ephemeral_bytes)

    def seal(self, to: str, value: Tree) -> bytes:
        """Seal a value for another party: bytes for a reply, a state, or a message of a session. `open` at that party is the inverse.

        The bytes are encrypted only if the world's ``sealing`` is real.

        Raises:
            ConfigError: no party of the job has this name.
            PolicyError: the island's policy does not release the value.
        """
        return self._letters.write(to, value, self._ephemeral_bytes).encode()

    def open(self, sender: str, sealed: bytes | Letter) -> Tree:
        """Open what another party has sealed for this one.

        Raises:
            LetterError: it was altered, is from another sender or job, or is for another party.
        """
        return self._letters.open(sender, sealed if isinstance(sealed, Letter) else Letter.decode(sealed))

    def _ephemeral_bytes(self, n: int) -> bytes:
        """Bytes from a separate stream, so that sealing does not change what a task draws from ``secret``."""
        if self._ephemeral is None:
            self._ephemeral = self._entropy("letters")
        return self._ephemeral.bytes(n)

    @property
    def outbox(self) -> dict[str, Letter]:
        """The posted letters, by recipient."""
        return self._letters.outbox

    @property
    def opened(self) -> list[tuple[str, str, int]]:
        """The opened letters: request, sender and number of each."""
        return self._letters.opened

    # ------------------------------------------------------------------ results

    async def totals(self, among: int | None = None) -> Totals:
        """Run the program's own task as it would run without the half; return this party's named totals, encoded by the uplink's stages.

        The party half of a reducer masks or encrypts them. The task has its own random stream, private state and stages. If its reply is
        not finite, this call does not return: the federation keeps the reply out of the sum and counts it.

        Args:
            among: the least number of replies in a sum that anybody may see, by the agreement that this party holds: noise that replies share relies on it,
                and a request that promises more is not believed. ``None`` is 1: the party then adds all of the noise itself.

        Raises:
            PolicyError: the party's policy requires sums of more replies.
            ConfigError: this request wraps no other.
            CompositionError: the task replied with ``Parts``, which cannot be summed.
        """
        if self._totals is None:
            raise ConfigError(
                "this request wraps no other",
                where=self._request,
                remedy="send the half with `reduction.fold(half)` or `reduction.exchange(..., wraps=True)`",
            )
        return await self._totals(among)

    def leave(self, name: str, value: Tree, *, at_once: bool = False) -> None:
        """Leave a named result at this party, for people there and for later jobs: half of a model, an answer, an index. It never leaves the party.

        It takes effect with the party's private state: a request that fails, or whose sum fails, leaves nothing. The result can be read
        once the job has ended well. A newer result replaces an older one of the same name.

        Args:
            name: up to 100 letters, digits and ``. _ -``.
            value: a message tree.
            at_once: make it durable before this returns, whatever becomes of the request and the job. A record of what the party has answered must not
                depend on a server that lets the job fail.

        Raises:
            ConfigError: the name is not valid.
            MessageError: the value is not a message tree.
            PolicyError: the party's policy allows no results to stay.
        """
        require_name(name)
        M.nbytes(value)
        self._keep(name, value)
        if at_once:
            self._put(name, value)
        else:
            self._left[name] = {"value": value}

    def left(self, name: str) -> Any:
        """The value of a named result that an earlier job left at this party.

        Raises:
            ConfigError: there is no result of this name.
        """
        if self._named is None:
            raise ConfigError(f"{self.name} stores no results", remedy="run the task through a federation")
        return self._named(name)

    def behind(self, slot: str) -> dict[str, Tree]:
        """What the task leaves at the party, by slot: its private state, if it has assigned one, and its named results."""
        left = {slot_of(slot, name): value for name, value in self._left.items()}
        return {**left, slot: self._state} if self._state_assigned else left

    def note(self, progress: Tree) -> None:
        """Report progress of a running task."""
        self._notes.append(progress)

    @property
    def notes(self) -> list[Tree]:
        """The progress reports."""
        return self._notes

    # ------------------------------------------------------------------ steps of a session

    def capture(self) -> dict[str, Tree]:
        """What the role of a session has kept here so far, for the step that its state belongs to."""
        return {
            "state": [self._state_assigned, self._state if self._state_assigned else None],
            "left": dict(self._left),
            "promised": [list(row) for row in self._promised.items()],
            "opened": [list(tag) for tag in self._letters.opened],
            "sealed": self.sealed,
        }

    def resume(self, captured: Any) -> None:
        """Return to what ``capture`` returned: the role goes on from there."""
        assigned, state = captured["state"]
        if assigned:
            self.state = T.map(lambda leaf: leaf, state)
        self._left = dict(captured["left"])
        self._promised = {bytes(matter): bytes(bound) for matter, bound in captured["promised"]}
        self._letters.opened.extend((at, sender, n) for at, sender, n in captured["opened"])
        self._sealed = bool(captured["sealed"])

    def begin_step(self, number: int) -> None:
        """Begin the step after a checkpoint. Secrets that follow from a seed begin anew, so that a resumed role draws what an undisturbed one draws."""
        self._sealed, self._step = self.sealed, number
        if self._secret_seed is not None:
            for secret, use in ((self._secret, "secret"), (self._ephemeral, "letters")):
                if secret is not None:
                    secret.restart(self._entropy(use))

    @property
    def sealed(self) -> bool:
        """Whether the reply depends on secrets or spent budget, so that running the task again would not give the same."""
        drew = any(secret is not None and secret.drawn for secret in (self._secret, self._ephemeral))
        return drew or self._sealed or self._spendings > 0 or bool(self._promised)
