"""The contract of an alignment protocol, and the role that runs it in a session.

A protocol is a part: a frozen dataclass below `PsiProtocol` with two methods. ``contract`` says which frames it sends and what each role learns, before
anyone is contacted; ``match`` is one role's side of the conversation. All else is here, and the same for all protocols: reading the keys, announcing sizes, the
site's own rules, what the role keeps and what it replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.addresses import declared_name, load_object
from atoll.core.errors import CompositionError, ConfigError, DataError, LetterError, PolicyError, nearest
from atoll.core.exposure import Contract, Exposure, ProtocolFrame
from atoll.core.requests.task import task
from atoll.core.rooms import part_names
from atoll.core.validation import Checked

from .keys import RowKeys, offset_of

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

__all__ = ["AlignmentPlan", "AlignmentSide", "Matches", "PsiProtocol", "intersect_keys"]

Rows = NDArray[np.uint8]

_LOG = logging.getLogger("atoll.psi")

CHUNK = 1 << 21
"""Bytes of one message at most: a frame of more is sent in several."""
SIZES = "sizes"
"""The channel of the first frame: 8 bytes number of keys and 8 bytes digest of the settings, to each other role."""
RESULTS = ("ids", "count", "sum", "shares")


@dataclass(frozen=True)
class AlignmentPlan(Checked):
    """The settings that all roles of one alignment share; they travel as arguments of the task.

    Attributes:
        columns: the columns of the key.
        roles: the roles, in an order that all agree on; each is the name of its party.
        result: ``"ids"``, ``"count"``, ``"sum"`` or ``"shares"``.
        learners: the roles that learn the result.
        column: for a sum, the column.
        holder: for a sum, the role that has the column.
        min_count: for a sum and for shares, the smallest number of shared keys behind them.
        payload: for shares, the columns of values, ``ROLE.COLUMN`` each.
        fraction: bits after the point of values in shares: they count in units of ``2^-fraction``.
        superset: for ids that one role learns, the share of the other's keys among which the shared ones hide; see `send_superset`. 0: the other gets no rows.
        seed: the seed of the order u.
        key: see `RowKeys.of`.
        label: names the alignment at its parties.
        row_offset: added to row numbers in errors; a table of a CSV file counts its lines by itself.
    """

    columns: Sequence[str]
    roles: Sequence[str]
    result: str = "ids"
    learners: Sequence[str] = ()
    column: str = ""
    holder: str = ""
    min_count: int = 1
    seed: int = 0
    key: Literal["text", "number"] | None = None
    label: str = "aligned"
    row_offset: int = 0
    payload: Sequence[str] = ()
    fraction: int = 20
    superset: float = 0.0

    def __post_init__(self) -> None:
        for name in ("columns", "roles", "learners", "payload"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.learners:
            object.__setattr__(self, "learners", self.roles)
        if len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"key columns {list(self.columns)}", where="psi", remedy="name each column of the key once"
            )
        if self.result not in RESULTS:
            raise ConfigError(f"result={self.result!r}.{nearest(self.result, RESULTS)}", where="psi", remedy=f"use one of {', '.join(RESULTS)}")  # fmt: skip
        if len(set(self.roles)) != len(self.roles) or len(self.roles) < 2:
            raise ConfigError(f"roles={list(self.roles)}", where="psi", remedy="name two or more parties, each once")
        unknown = [name for name in (*self.learners, *([self.holder] if self.holder else [])) if name not in self.roles]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no party of the alignment.{nearest(unknown[0], self.roles)}", where="psi", remedy=f"choose from {list(self.roles)}")  # fmt: skip
        if (self.result == "sum") != bool(self.column and self.holder):
            raise ConfigError(f"result={self.result!r} with column={self.column!r} of {self.holder!r}", where="psi", remedy="name the column of a sum and the party that has it, and none otherwise")  # fmt: skip
        if self.min_count < 1:
            raise ConfigError(f"min_count={self.min_count}", where="psi", remedy="use a whole number of at least 1")
        self._require_fitting()

    def _require_fitting(self) -> None:
        loose = [name for name in self.payload if not any(name.startswith(f"{role}.") for role in self.roles)]
        if loose or (self.payload and self.result != "shares") or len(set(self.payload)) != len(self.payload):
            raise ConfigError(f"result={self.result!r} with the columns {list(self.payload)}", where="psi", remedy=f"name each column of shares once, as PARTY.COLUMN with a party of {list(self.roles)}")  # fmt: skip
        if self.result == "shares" and set(self.learners) != set(self.roles):
            raise ConfigError(f"shares for {list(self.learners)}", where="psi", remedy="leave out who learns them: each party has a share, and nobody learns anything")  # fmt: skip
        if not 0 <= self.superset <= 1 or (self.superset and (self.result != "ids" or len(self.learners) != 1)):
            raise ConfigError(f"superset={self.superset} of {self.result} for {list(self.learners)}", where="psi", remedy="use a share of up to 1, result='ids', and one party that learns it: to=['bank']")  # fmt: skip
        if not 0 <= self.fraction <= 40:
            raise ConfigError(f"fraction={self.fraction}", where="psi", remedy="use 0 to 40 bits after the point")

    def spec(self) -> dict[str, Any]:
        """The plan as plain arguments of a task."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def others(self, me: str) -> tuple[str, ...]:
        """The roles but one."""
        return tuple(role for role in self.roles if role != me)

    def digest(self, protocol: Mapping[str, Any]) -> bytes:
        """8 bytes that are the same at roles with the same settings."""
        return hashlib.blake2b(repr((sorted(protocol.items()), self)).encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Matches:
    """What one role knows at the end.

    Attributes:
        shared: for each of its own keys, in the order of u, whether all have it; ``None`` if the role does not learn it.
        count: the number of shared keys; ``None`` if the role does not learn it.
        total: the sum; ``None`` if there is none for this role.
        shares: what the role keeps of shared rows that nobody knows; see `read_shares`.
        hidden: with a superset, the place of the key of each row that both roles use, -1 where this role has none; ``None`` without one.
    """

    shared: NDArray[np.bool_] | None = field(default=None, repr=False)
    count: int | None = None
    total: float | None = None
    shares: Mapping[str, Any] = field(default_factory=dict, repr=False)
    hidden: NDArray[np.int64] | None = field(default=None, repr=False)


@dataclass
class AlignmentSide:
    """One role's side of a running alignment: what ``PsiProtocol.match`` works with.

    Attributes:
        island: the party's place: ``island.secret`` is the only source of keys and orders.
        peers: the session.
        me: this role.
        plan: the settings.
        keys: this role's distinct keys, in the order of u.
        sizes: the announced number of keys of each role, this one too.
        state: what the role has kept at the last agreed checkpoint.
        protocol: the name of the protocol, which keeps what it remembers apart from that of others.
        enough: whether the protocol has shown that as many keys are shared as plan and policy require.
    """

    island: Island
    peers: Peers
    me: str
    plan: AlignmentPlan
    keys: RowKeys = field(repr=False)
    sizes: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    protocol: str = ""
    enough: bool = False

    @property
    def other(self) -> str:
        """The other role of two."""
        (other,) = self.plan.others(self.me)
        return other

    def learns(self, role: str) -> bool:
        """Whether a role learns the result."""
        return role in self.plan.learners

    async def keep(self, **state: Any) -> None:
        """Agree on a step with all roles: after a crash, ``state`` has these values too, and the messages before are not sent again."""
        self.state = {**self.state, "sizes": dict(self.sizes), **state}
        await self.peers.checkpoint(self.state)

    def recall(self, name: str) -> Any:
        """What an earlier alignment of the job with the same others and key columns has remembered here; ``None`` without one."""
        known = self.island.state if isinstance(self.island.state, dict) else {}
        return known.get(self._place, {}).get(name)

    def remember(self, **values: Any) -> None:
        """Remember values for later alignments of the job with the same others and key columns."""
        known = self.island.state if isinstance(self.island.state, dict) else {}
        self.island.state = {**known, self._place: {**known.get(self._place, {}), **values}}

    @property
    def _place(self) -> str:
        # Columns in any order are one key: in another order a set could be tried a second time.
        return f"psi of {self.me} {list(self.plan.others(self.me))} {sorted(self.plan.columns)}"

    def bind_set(self, rows: Rows, role: str | None = None, what: str = "set") -> None:
        """Accept one set of another role in the job: probing by changed sets would tell it more keys each time.

        Args:
            rows: what stands for its set, equal for equal sets in any order.
            role: the role; by default the other of two.
            what: what the rows stand for: of each, there is one in the job.

        Raises:
            PolicyError: it came with another set before.
        """
        role = self.other if role is None else role
        raw, width = np.ascontiguousarray(rows).tobytes(), max(1, rows.shape[1])
        each = sorted(raw[at : at + width] for at in range(0, len(raw), width))
        digest = hashlib.blake2b(b"".join(each), digest_size=32).digest()
        try:
            self.island.promise(f"{self._place}: the {what} of {role}", digest)
        except PolicyError as error:
            raise PolicyError(f"{role} comes with another set than before in this job", where="policy", remedy="align changed sets in a job of their own, which the site's people see") from error  # fmt: skip

    async def send_rows(self, name: str, role: str, rows: NDArray[Any]) -> None:
        """Send a frame: rows of bytes, ``(rows, width)``, in messages of at most ``CHUNK`` bytes on the channel of the frame's name."""
        if len(rows) == 0:
            return
        flat = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        channel, step = self.peers.channel(name), _rows_of_chunk(flat.shape[1])
        for at in range(0, len(flat), step):
            await channel.send(role, flat[at : at + step])

    async def receive_rows(self, name: str, role: str, rows: int, width: int) -> Rows:
        """Receive a frame, ``(rows, width)``.

        Raises:
            LetterError: a message has another form than the frame: the other role sends more, or something else, than it announced.
        """
        channel, step = self.peers.channel(name), _rows_of_chunk(width)
        found = np.empty((rows, width), dtype=np.uint8)
        for at in range(0, rows, step):
            part, wanted = await channel.recv(role), (min(step, rows - at), width)
            if not isinstance(part, np.ndarray) or part.dtype != np.uint8 or part.shape != wanted:
                form = f"{part.dtype} {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__
                raise LetterError(f"{form} in {name!r} from {role}, in place of uint8 {wanted}", where="psi", remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
            found[at : at + step] = part
        return found

    async def swap_rows(self, name: str, rows: NDArray[Any], theirs: int, width: int) -> Rows:
        """Send a frame to the other role of two and receive its frame of the same name at the same time."""
        _, found = await asyncio.gather(self.send_rows(name, self.other, rows), self.receive_rows(name, self.other, theirs, width))  # fmt: skip
        return found

    def require_count(self, count: int | None) -> None:
        """Refuse to tell more where too few keys are shared, by the site's own rule and the plan's.

        Raises:
            PolicyError: too few are shared, or this role cannot know because it does not learn the count.
        """
        least = max(self.island.rules.min_aligned, self.plan.min_count if self.plan.result in ("sum", "shares") else 1)
        if self.enough:
            return
        if least > 1 and count is None:
            raise PolicyError(f"min_aligned={least}, and {self.me} does not learn how many keys are shared", where="policy", remedy="let this party learn the result too, or lower min_aligned in its policy")  # fmt: skip
        if least > 1 and count is not None and count < least:
            raise PolicyError(f"fewer than {least} keys are shared", where="policy", remedy="align larger sets, or lower min_aligned in the site's policy or min_count in the job")  # fmt: skip


class PsiProtocol(Checked):
    """Base class of alignment protocols: frozen dataclasses of settings.

    Attributes:
        results: the results that it can give.
        most_roles: the most parties at once.
        hides: whether shared rows can hide in a superset.
        rounds: whether it rounds the values of a sum to multiples of ``2^-fraction``.
    """

    hides: ClassVar[bool] = False
    rounds: ClassVar[bool] = False
    results: ClassVar[tuple[str, ...]] = ("ids",)
    most_roles: ClassVar[int] = 2

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """The frames and what each role learns; see `base_contract` for what is common to all.

        Args:
            plan: the settings.
            sizes: number of keys of each role.
        """
        raise NotImplementedError

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """How many operations all roles together do, by the names of `predict_seconds`; empty where nobody has said.

        Args:
            plan: the settings.
            sizes: number of keys of each role.
        """
        del plan, sizes
        return {}

    async def match(self, side: AlignmentSide) -> Matches:
        """One role's side. ``side.state`` holds what it has kept with ``side.keep`` before a crash.

        Raises:
            LetterError: a message that does not follow the protocol.
            PolicyError: too few keys are shared.
        """
        raise NotImplementedError

    def carrier(self, result: str) -> PsiProtocol:
        """The protocol that finds a result: itself, unless it can find it only as another one does, which sites' policies and whoever reads the result then see."""
        del result
        return self

    def require_plan(self, plan: AlignmentPlan) -> None:
        """Refuse a plan that the protocol cannot carry.

        Raises:
            CompositionError: it gives no such result, or not to so many parties.
        """
        name, count = type(self).__name__, len(plan.roles)
        if plan.result not in self.results or count > self.most_roles:
            able = [one.__name__ for one in protocols() if plan.result in one.results and count <= one.most_roles]
            what = (
                f"gives no {plan.result}"
                if plan.result not in self.results
                else f"aligns at most {self.most_roles} parties, not {count}"
            )
            remedy = f"use {' or '.join(f'protocol={one}()' for one in able)}" if able else f"no protocol gives a {plan.result} of {count} parties: use result='ids', which tells how many too, or two parties at a time"  # fmt: skip
            raise CompositionError(f"{name} {what}", where="psi", remedy=remedy)
        if plan.superset and not self.hides:
            raise CompositionError(f"{name} hides no keys in a superset", where="psi", remedy="use Ecdh or Oprf, or leave out superset")  # fmt: skip

    def spec(self) -> dict[str, Any]:
        """The protocol as plain arguments of a task."""
        return {"name": declared_name(type(self)), **{one.name: getattr(self, one.name) for one in fields(self)}}  # type: ignore[arg-type]

    @staticmethod
    def of(spec: Mapping[str, Any]) -> PsiProtocol:
        """The inverse of ``spec``.

        Raises:
            ConfigError: no protocol has this name.
        """
        settings = dict(spec)
        name = str(settings.pop("name", ""))
        try:
            found = load_object(name)
        except (ImportError, AttributeError, ValueError):
            found = None
        if not (isinstance(found, type) and issubclass(found, PsiProtocol)):
            raise ConfigError(f"no alignment protocol named {name!r}", where="psi", remedy="use a class below PsiProtocol that every party can import")  # fmt: skip
        return found(**settings)


def protocols() -> list[type[PsiProtocol]]:
    """All alignment protocols of Atoll."""
    import atoll.secure.psi

    return [getattr(atoll.secure.psi, name) for name in part_names("alignment protocol")]


def base_contract(protocol: PsiProtocol, plan: AlignmentPlan, frames: Sequence[ProtocolFrame]) -> Contract:
    """The contract of a protocol that tells sizes to all, and to learners the result and nothing else.

    Args:
        protocol: the protocol.
        plan: the settings.
        frames: its frames after the sizes.
    """
    pairs = [(a, b) for a in plan.roles for b in plan.others(a)]
    sizes = [ProtocolFrame(SIZES, a, b, 1, 16, "number of keys, digest of the settings") for a, b in pairs]
    learns = [Exposure(b, f"how many keys {a} has", kind="sizes", of=a) for a, b in pairs]
    learns.append(Exposure("the program", "how many keys each party has", "", "sizes"))  # each role replies it
    for role in plan.roles if plan.result == "sum" else plan.learners:
        for other in plan.others(role):
            if plan.result == "ids":
                learns.append(Exposure(role, f"which of its own keys {other} has too", _HONEST, "ids", other))
            else:
                learns.append(Exposure(role, _COUNT, _HONEST, "count", other))
        if plan.superset:
            (other,) = plan.others(role)
            learns.append(Exposure(other, f"that its shared keys are among {plan.superset:.0%} of its keys", _HONEST, "superset", role))  # fmt: skip
        if plan.result == "sum" and role in plan.learners and role != plan.holder:
            learns.append(Exposure(role, f"the sum of {plan.column} over shared keys", _HONEST, "sum", plan.holder))
    return Contract(type(protocol).__name__, (*sizes, *frames), tuple(learns))


def superset_size(plan: AlignmentPlan, keys: int) -> int:
    """How many of another role's keys are in its superset."""
    return math.ceil(plan.superset * keys)


async def send_superset(side: AlignmentSide, genuine: NDArray[np.bool_], names: Rows) -> NDArray[np.int64]:
    """Tell the other role which of its keys to use: all that are shared, and as many others by lot as the plan says, so that it does not know which are which; return their places.

    This is the alignment of Liu, Zhang, Wang (2020, "Asymmetrical vertical federated learning"): the party that learns the keys knows which rows are genuine and gives the others no weight. The lot
    is drawn once a job: of two supersets, what both hold would be shared more often.

    Args:
        side: this role, which learns the keys.
        genuine: for each of the other's keys, in an order of its own, whether it is shared.
        names: what this role knows each of them by, the same throughout the job, ``(keys, width)``.

    Raises:
        PolicyError: more keys are shared than the superset holds, or the job had one of another size before.
    """
    size, count = superset_size(side.plan, len(genuine)), int(genuine.sum())
    if count > size:
        raise PolicyError(f"more keys are shared than {side.plan.superset:.0%} of those of {side.other}", where="policy", remedy="give the job a larger superset, up to 1: all of them")  # fmt: skip
    drawn = side.recall("superset")
    if drawn is None:
        dummies = np.flatnonzero(~genuine)
        lot = np.argsort(side.island.secret.uint64(len(dummies)), kind="stable")
        drawn = names[np.concatenate([np.flatnonzero(genuine), dummies[lot[: size - count]]])]
        side.remember(superset=drawn)
    await side.keep()
    known = {row.tobytes() for row in np.asarray(drawn)}
    chosen = np.array([row.tobytes() in known for row in names], dtype=bool)
    if int(chosen.sum()) != size:
        raise PolicyError(f"a superset of {size} keys, and before one of {len(known)}", where="policy", remedy="use one superset in a job: two together tell more than each")  # fmt: skip
    await side.send_rows("superset", side.other, np.packbits(chosen, bitorder="little").reshape(-1, 1))
    return np.flatnonzero(chosen)


async def receive_superset(side: AlignmentSide, keys: int) -> NDArray[np.int64]:
    """The places that `send_superset` of the other role names.

    Raises:
        LetterError: they are not as many as the plan says.
    """
    await side.keep()
    told = await side.receive_rows("superset", side.other, -(-keys // 8), 1)
    flags = np.unpackbits(told.ravel(), bitorder="little").astype(bool)
    size = superset_size(side.plan, keys)
    if flags[keys:].any() or int(flags.sum()) != size:
        raise LetterError(f"{int(flags.sum())} keys in a superset of {size}", where=side.other, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    return np.flatnonzero(flags)


async def no_message() -> None:
    """In place of a frame that the plan does not have."""


def tell_program(contract: Contract, plan: AlignmentPlan) -> Contract:
    """The contract of an alignment whose learners tell the program what they learn."""
    counted = any(one.kind == "ids" or one.sees == _COUNT for one in contract.learns)  # a sum may tell no count
    told = {"count": _COUNT} if counted else {}
    told |= {"ids": "which keys all share"} if plan.result == "ids" else {}
    told |= {"sum": f"the sum of {plan.column} of {plan.holder} over shared keys"} if plan.result == "sum" else {}
    return replace(contract, learns=(*contract.learns, *(Exposure("the program", sees, "", kind) for kind, sees in told.items())))  # fmt: skip


_COUNT = "how many keys all share"
_HONEST = "all follow the protocol with their true sets"


def _rows_of_chunk(width: int) -> int:
    return max(1, CHUNK // max(1, width))


def _contract_of(args: Mapping[str, Any]) -> Contract:
    plan, protocol = AlignmentPlan(**args["plan"]), PsiProtocol.of(args["protocol"])
    contract = protocol.contract(plan, dict.fromkeys(plan.roles, 0))
    return tell_program(contract, plan) if args.get("show") else contract


@task(contract=_contract_of)
async def intersect_keys(
    island: Island, peers: Peers, me: str, protocol: Mapping[str, Any], plan: Mapping[str, Any], show: bool = False
) -> dict[str, Any]:
    """One role of an alignment.

    The role keeps its result in ``island.state[label]``, and leaves it at the party under this name: ``rows``, the first row of each shared key in the order of u, and
    ``names``, both empty where it does not learn them, with a superset the rows of all its places (-1 for a dummy), ``count`` and ``total``, its shares (see `read_shares`), and the shape of its own keys if none is shared. It replies the number of its keys, and with ``show`` what it has learned.
    """
    made, settings = PsiProtocol.of(protocol), AlignmentPlan(**plan)
    made.require_plan(settings)
    if me != island.name:
        raise ConfigError(f"the role {me!r} at {island.name!r}", where="psi", remedy="name each role as its party: what a party is bound to, it is under its own name")  # fmt: skip
    state = await peers.restore({})
    keys = RowKeys.of(
        island.data,
        settings.columns,
        seed=settings.seed,
        key=settings.key,
        where=f"the table of {me}",
        row_offset=settings.row_offset,
    )
    for line in keys.name_lost(settings.columns) if island.remote else ():  # in one process the result says it
        _LOG.warning("%s", line)
    settings = replace(settings, row_offset=offset_of(island.data, settings.row_offset))
    side = AlignmentSide(island, peers, me, settings, keys, dict(state.get("sizes", {})), state, type(made).__name__)
    if not side.learns(me) and settings.result != "sum":  # of a sum, and of shares, all learn as much
        side.require_count(None)  # before anything is said: a learner knows the count before this role can refuse
    if not side.sizes:
        await _announce_sizes(side, AlignmentPlan(**plan).digest(protocol))
    found = await made.match(side)
    side.require_count(found.count)
    shared = np.zeros(len(keys), dtype=bool) if found.shared is None else found.shared
    names = [name for name, one in zip(keys.names, shared.tolist(), strict=True) if one]
    # One array, not a list: a message has a leaf for each element of a list, and there may be millions.
    kept = {
        "rows": keys.places[shared] if found.hidden is None else _rows_of(keys, found.hidden),
        "names": np.array(names, dtype=np.str_),
        "count": found.count,
        "total": found.total,
        **found.shares,
    }
    if found.count == 0:
        kept["shape"] = keys.shape()
    island.state = {**(island.state if isinstance(island.state, dict) else {}), settings.label: kept}
    with contextlib.suppress(PolicyError):  # where the policy lets no result stay, it is in the job's state alone
        island.leave(settings.label, kept)
    if not show:
        return {"size": len(keys), "count": None, "total": None, "names": None}
    return {"size": len(keys), "count": found.count, "total": found.total, "names": None if found.shared is None else names}  # fmt: skip


def _rows_of(keys: RowKeys, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of each of some keys, -1 for a place of -1."""
    return np.concatenate([keys.places, [-1]])[places]


async def _announce_sizes(side: AlignmentSide, digest: bytes) -> None:
    mine = np.frombuffer(len(side.keys).to_bytes(8, "little") + digest, dtype=np.uint8).reshape(1, 16)
    others = side.plan.others(side.me)
    for role in others:
        await side.send_rows(SIZES, role, mine)
    side.sizes[side.me] = len(side.keys)
    for role in others:
        row = (await side.receive_rows(SIZES, role, 1, 16)).tobytes()
        if row[8:] != digest:
            raise ConfigError(f"{role} aligns with other settings", where="psi", remedy="give all parties the same protocol, key columns, result and seed")  # fmt: skip
        side.sizes[role] = int.from_bytes(row[:8], "little")
        if side.sizes[role] > MOST_KEYS:
            raise DataError(f"{role} announces {side.sizes[role]} keys", where="psi", remedy=f"align at most {MOST_KEYS} keys at once")  # fmt: skip


MOST_KEYS = 1 << 28
