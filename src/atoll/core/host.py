"""The party side of a federation: runs tasks on islands, whoever carried the request there.

Every engine and transport ends here. A host owns the islands' private state, applies each island's policy, answers a repeated request from
its journal instead of running it twice, and adds up the replies of a cohort so that only sums travel back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from . import tree as T
from .aggregate import Aggregate, Totals, merge_totals
from .cohort import Cohort, Population
from .errors import AtollError, MessageError, PolicyError, TaskError
from .event import Ledger
from .island import AllowAll, Island, Policy
from .journal import Journal
from .party import Parties, Roster
from .request import Folded, Reply, Request
from .rng import Rng
from .store import StateStore
from .task import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Host"]


@dataclass
class Host:
    """Runs tasks for the parties of one place.

    Attributes:
        roster: everyone, for names.
        population: the islands' data.
        store: private state.
        ledger: where privacy events go, or a function that carries them there.
        journal: replies that must not be made twice.
        vectorised: whether to use a task's ``many``.
        secret_seed: seeds the islands' secrets in a reproducible simulation; ``None`` is the system's entropy.
    """

    roster: Roster
    population: Population
    store: StateStore = field(default_factory=StateStore)
    ledger: Ledger | Any = field(default_factory=Ledger)
    journal: Journal = field(default_factory=lambda: Journal())
    policy: Policy = field(default_factory=AllowAll)
    vectorised: bool = False
    secret_seed: int | None = None

    def data(self, position: int) -> Any:
        """The data of a party."""
        if position < len(self.population):
            return self.population.shard(position)
        return getattr(self.population, "others", {}).get(self.roster.name(position))

    def island(self, request: Request, position: int, key: int) -> Island:
        """The view that a task gets."""
        name = self.roster.name(position)
        return Island(
            self.roster.party(position),
            lambda: self.data(position),
            key,
            request=request.id,
            state=lambda: self.store.get(request.slot, position),
            ledger=lambda event, party, where: self.ledger.append(event, party, where),
            inbox=request.mail.box(name) if request.mail else None,
            secret_seed=self.secret_seed,
        )

    def keys(self, request: Request, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The random key of each party for this request."""
        return Rng(request.key).children(self.roster.keys(positions))

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, one after another, in the order given."""
        keys = self.keys(request, positions)
        return [await self.one(request, int(p), int(k)) for p, k in zip(positions, keys, strict=True)]

    async def one(self, request: Request, position: int, key: int) -> Reply:
        """Run the task at one party, or answer from the journal."""
        known = self.journal.get(request.id, position)
        if known is not None:
            if known.state_changed:
                self.store.put(request.slot, position, known.state)
            return known.reply(position)
        island = self.island(request, position, key)
        try:
            value = request.task(island, request.message)
            if inspect.isawaitable(value):
                value = await value
            self.policy.release(island.party, request.task.name, value)
            nbytes = M.nbytes(_wire(value)) + sum(M.nbytes(p) for p in island._outbox.values())
        except Exception as error:
            return Reply(position, error=self._explain(error, request, position))
        changed = island._state_loaded and island._state is not self.store.get(request.slot, position)
        reply = Reply(position, value, island._outbox, island._notes, nbytes)
        if island.sealed:
            self.journal.put(request.id, reply, island._state, changed)
        if changed:
            self.store.put(request.slot, position, island._state)
        return reply

    def _explain(self, error: Exception, request: Request, position: int) -> Exception:
        """Say which round, party, task and arguments an error belongs to; Atoll's own errors keep their kind."""
        where = f"{request.id} at {self.roster.name(position)}"
        if isinstance(error, PolicyError) or (isinstance(error, AtollError) and error.where is not None):
            return error
        if isinstance(error, AtollError):
            return type(error)(error.what, where=where, remedy=error.remedy)
        shown = ", ".join(f"{k}={v!r}" for k, v in request.task.args.items())
        wrapped = TaskError(
            f"{type(error).__name__}: {error}",
            where=f"task {request.task.name}({shown}), request {where}, message {_sketch(request.message)}",
            remedy="fix the task; engine='inline' runs it in this process, where a debugger can stop",
        )
        wrapped.__cause__ = error
        return wrapped

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Run the task at each party and add up the replies."""
        if self.vectorised and request.task.many is not None and request.mail is None:
            return self._fold_blocks(request, positions)
        totals: list[Totals] = []
        sizes: list[int] = []
        folded = Folded({}, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        senders: list[int] = []
        keys = self.keys(request, positions)
        for position, key in zip(positions.tolist(), keys.tolist(), strict=True):
            reply = await self.one(request, position, key)
            if reply.error is not None:
                folded.errors[position] = reply.error
                continue
            part, nbytes, reason = self.encode(request, reply, key)
            if reason:
                folded.rejected[position] = reason
                continue
            folded.totals = merge_totals([folded.totals, part])
            senders.append(position)
            sizes.append(nbytes)
        del totals
        folded.senders = np.array(senders, dtype=np.int64)
        folded.nbytes = np.array(sizes, dtype=np.int64)
        return folded

    def encode(self, request: Request, reply: Reply, key: int) -> tuple[Totals, int, str]:
        """One reply through the uplink: its totals, its size, and why it is rejected (or ``""``)."""
        aggregates = _aggregates(reply.value, request, self.roster.name(reply.party))
        totals: Totals = {}
        sent: dict[str, Any] = {}
        for name, aggregate in aggregates.items():
            bad = _not_finite(aggregate.value, aggregate.weight)
            if bad:
                return {}, 0, f"{name}/{bad} is not finite" if bad != "." else f"{name} is not finite"
            totals[name], wire = request.uplink.encode(aggregate, request.public, Rng(key).child(name))
            sent[name] = {"kind": aggregate.kind, "value": wire, "weight": float(aggregate.weight)}
        return totals, M.nbytes(sent), ""

    def _fold_blocks(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        keys = self.keys(request, positions)
        cohort = Cohort(Parties(self.roster, positions), keys, self.population, self.store, request.slot)
        sizes = np.zeros(len(positions), dtype=np.int64)
        kept = np.zeros(len(positions), dtype=bool)
        rejected: dict[int, str] = {}
        totals: Totals = {}
        try:
            for batch in request.task.batches(cohort, request.message):
                part, keep, nbytes = self._fold_block(request, batch, keys[batch.positions], rejected, positions)
                totals = merge_totals([totals, part])
                kept[batch.positions] = keep
                sizes[batch.positions] = nbytes
                self._keep_states(request, batch, positions)
        except Exception as error:
            explained = self._explain(error, request, int(positions[0]))
            errors = dict.fromkeys(positions.tolist(), explained)
            return Folded({}, positions[:0], sizes[:0], {}, errors)
        return Folded(totals, positions[kept], sizes[kept], rejected)

    def _fold_block(
        self,
        request: Request,
        batch: Batch,
        keys: NDArray[np.uint64],
        rejected: dict[int, str],
        positions: NDArray[np.int64],
    ) -> tuple[Totals, NDArray[np.bool_], int]:
        keep = np.ones(len(batch.positions), dtype=bool)
        place = {int(p): i for i, p in enumerate(batch.positions)} if batch.rejected else {}
        for position, reason in batch.rejected.items():
            keep[place[position]] = False
            rejected[int(positions[position])] = reason
        totals = self._sum_block(request, batch, keys, keep)
        # A sum is finite only if every term is: single clients are looked at only when it is not.
        if any(_not_finite(total.value, total.weight) for total in totals.values() if total.kind != "parts"):
            for i in np.flatnonzero(keep):
                for name, aggregate in batch.reply.items():
                    one = T.map(lambda leaf, i=i: leaf[i], aggregate.value)
                    bad = _not_finite(one, np.broadcast_to(aggregate.weight, keep.shape)[i])
                    if bad:
                        keep[i] = False
                        rejected[int(positions[batch.positions[i]])] = (
                            f"{name}/{bad} is not finite" if bad != "." else f"{name} is not finite"
                        )
                        break
            totals = self._sum_block(request, batch, keys, keep)
        one = {
            n: {"kind": a.kind, "value": T.map(lambda x: x[0], a.value), "weight": 1.0} for n, a in batch.reply.items()
        }
        return totals, keep, M.nbytes(one) if not request.uplink else self._staged_bytes(request, batch, keys)

    def _staged_bytes(self, request: Request, batch: Batch, keys: NDArray[np.uint64]) -> int:
        sent = {}
        for name, aggregate in batch.reply.items():
            one = aggregate.with_value(T.map(lambda leaf: leaf[0], aggregate.value))
            _, wire = request.uplink.encode(_scalar_weight(one), request.public, Rng(int(keys[0])).child(name))
            sent[name] = {"kind": aggregate.kind, "value": wire, "weight": 1.0}
        return M.nbytes(sent)

    def _sum_block(self, request: Request, batch: Batch, keys: NDArray[np.uint64], keep: NDArray[np.bool_]) -> Totals:
        chain = request.uplink
        mask = None if keep.all() else keep.astype(np.float64)
        totals: Totals = {}
        for name, aggregate in batch.reply.items():
            if not chain or aggregate.metric or (chain.summable and not chain.summand_stages):
                staged = aggregate
                if chain and not aggregate.metric:
                    stream = np.array([Rng(int(k)).child(name).key for k in keys], dtype=np.uint64)
                    staged = chain.encode_block(aggregate, request.public, stream)
                totals[name] = staged.block_sum(mask)
                continue
            weights = np.broadcast_to(aggregate.weight, keep.shape)
            for i in np.flatnonzero(keep):
                one = _with_weight(aggregate.with_value(T.map(lambda leaf, i=i: leaf[i], aggregate.value)), weights[i])
                total, _ = chain.encode(one, request.public, Rng(int(keys[i])).child(name))
                totals[name] = totals[name].merge(total) if name in totals else total
        return totals

    def _keep_states(self, request: Request, batch: Batch, positions: NDArray[np.int64]) -> None:
        if batch.states is None:
            return
        for i, position in enumerate(batch.positions):
            if int(position) not in batch.rejected:
                state = T.map(lambda leaf, i=i: leaf[i], batch.states)
                self.store.put(request.slot, int(positions[position]), state)

    async def role(self, request: Request, position: int, peers: Any) -> Any:
        """Run one role of a session: ``async (island, peers) -> result``."""
        key = int(self.keys(request, np.array([position], dtype=np.int64))[0])
        island = self.island(request, position, key)
        try:
            value = await request.task.run(island, peers, **request.task.args)
            self.policy.release(island.party, request.task.name, value)
        except Exception as error:
            raise self._explain(error, request, position) from error
        if island._state_loaded and island._state is not self.store.get(request.slot, position):
            self.store.put(request.slot, position, island._state)
        return value


def _scalar_weight(aggregate: Aggregate) -> Aggregate:
    weight = np.ravel(np.asarray(aggregate.weight, dtype=np.float64))
    return _with_weight(aggregate, float(weight[0]))


def _with_weight(aggregate: Aggregate, weight: float) -> Aggregate:
    if not hasattr(aggregate, "examples"):
        return aggregate
    return type(aggregate)(aggregate.value, examples=float(weight), metric=aggregate.metric)  # type: ignore[call-arg]


def _wire(value: Any) -> Any:
    """A reply as a message tree: aggregates become plain dicts."""
    if isinstance(value, dict) and any(isinstance(v, Aggregate) for v in value.values()):
        return {
            k: {"kind": v.kind, "value": v.value, "weight": v.weight} if isinstance(v, Aggregate) else v
            for k, v in value.items()
        }
    return value


def _aggregates(value: Any, request: Request, party: str) -> dict[str, Aggregate]:
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        return value
    shown = {k: type(v).__name__ for k, v in value.items()} if isinstance(value, dict) else type(value).__name__
    raise MessageError(
        f"the reply to a sum must be a dict of aggregates, not {shown}",
        where=f"task {request.task.name} at {party}",
        remedy='return for example {"update": Mean(value, examples=n)}',
    )


def _not_finite(value: T.Tree, weight: Any) -> str:
    """The path of the first non-finite leaf, ``"."`` for a bare leaf or the weight, ``""`` when all is finite."""
    if not np.all(np.isfinite(np.asarray(weight, dtype=np.float64))):
        return "."
    for path, leaf in T.items(value):
        if isinstance(leaf, np.ndarray | np.generic):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                return path or "."
        elif isinstance(leaf, float):
            if not np.isfinite(leaf):
                return path or "."
        elif type(leaf).__module__ == "torch" and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return path or "."
    return ""


def _sketch(message: T.Tree) -> str:
    parts: Iterator[str] = (
        f"{path}:{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf)) or ''}"
        for path, leaf in T.items(message)
    )
    text = ", ".join(parts)
    return "{" + (text if len(text) < 300 else text[:297] + "...") + "}"


Transport = Callable[..., Any]
