"""``saqe:sampled_by=shares``: a sample that nobody knows, drawn under shares (Bater et al. 2020, "SAQE", oblivious sampling).

Noise on a sample may be as small as `sample_epsilon` says only as long as the sample is secret. Where sites draw it, each knows which of its own rows are in. Here three parties draw it, on shares:

1. Each site bounds what units contribute, as `atoll.query.strategies.saqe` says, and charges the analyst. It writes down, before anything leaves: the numbers of each unit (or value) in each group, its noise, and a seed.
2. It shares these numbers among the three parties, a row for each unit in a group, filled up to a power of two; beside each row the threshold ``q 2^32`` of its group, 0 for rows that fill up. From its seed it shares a
   word of 32 uniform bits for each row of *all* sites.
3. The parties add the words of a row up by XOR. A row is in the sample if this sum is below its threshold: a bit that follows from the seeds of all sites, which no site and no party knows as long as one other site keeps its
   seed. They multiply the bits with the numbers, add up, and add the shared noise of all sites.
4. The first two parties give the coordinator their parts of the noised sums. Nothing else is opened.

A repeated statement runs again on the numbers, noise and seeds that each site wrote down, so that it has the same sample and the same answer, whatever has become of the rows, and costs nothing. Nobody keeps the sample for that.

How many rows a site shares is seen, up to a power of two, so policies must say ``sizes: open`` for the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import LetterError, PolicyError
from atoll.core.requests.task import task
from atoll.secure.keystream import SEED, opened
from atoll.secure.shares import (
    ReplicatedComputation,
    ReplicatedSharing,
    SharedArray,
    SharedWords,
    ShareRehearsal,
    Trio,
    WordRing,
)
from atoll.secure.shares.word_circuits import less_words, lift_bits
from atoll.secure.tables import SharedTable, concatenate_tables, join_parts, outward_rows, send_table, share_table

from ..events import write_event
from ..local import digest_request
from ..secure.costs import relayed_nbytes, sharing_nbytes
from ..secure.extents import fill_up
from ..slices import empty_table
from .releases import DrawnNumbers, add_noise, find_noised, plan_here, read_cells, release_numbers, wants_shares
from .shared_rows import promised_of
from .strategy import CONTACT_NBYTES, ROLE_NBYTES, choose_three, promise_min_count

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..noised_plan import NoisedPlan

__all__ = ["charge_sample", "draw_sums", "guess_session", "open_sample", "require_open", "share_numbers", "sum_sample"]

_BITS = 33
"""Bits of a threshold: a rate of 1 is 2^32, which no word of 32 bits reaches."""
_WORD = 32
_Shared = TypeVar("_Shared", SharedWords, SharedArray)
_ROWS = "sampled-rows"
"""Begins the names of the numbers that sites keep for repeated statements."""


# ---------------------------------------------------------------- under shares


_SEEDED: dict[str, int | None] = {"u": _BITS}
_ADDED: dict[str, int | None] = {"n": None}
"""The columns of the words of a seed, and of noise."""


def _layout(width: int) -> dict[str, int | None]:
    return {"threshold": _BITS, **{f"v{k}": None for k in range(width)}}


async def draw_sums(trio: Trio, rows: Mapping[str, int], width: int, own: Mapping[str, DrawnNumbers]) -> SharedArray:
    """The noised sums over a sample that nobody knows, ``(width,)``, as shares.

    Args:
        trio: the three parties.
        rows: how many rows each site shares.
        width: how many sums there are.
        own: the site that this party is, and what it shares; empty for a party without rows.
    """
    tables, total, words, noise = [], sum(rows.values()), None, None
    for site, count in rows.items():
        mine = own.get(site)
        tables.append(await share_table(trio, site, layout=_layout(width), capacity=count, rows=None if mine is None else mine.columns()))  # fmt: skip
        seeded = await share_table(trio, site, layout=_SEEDED, capacity=total, rows=None if mine is None else {"u": expand_seed(mine.seed, total)})  # fmt: skip
        added = await share_table(trio, site, layout=_ADDED, capacity=width, rows=None if mine is None else {"n": mine.noise})  # fmt: skip
        words = seeded.words("u") if words is None else words ^ seeded.words("u")
        noise = added.numbers("n") if noise is None else noise + added.numbers("n")
    return await sum_inside(_require(words), concatenate_tables(tables), _require(noise), width)


async def sum_inside(words: SharedWords, table: SharedTable, noise: SharedArray, width: int) -> SharedArray:
    """The noised sums over the rows whose words are below their thresholds."""
    trio = table.trio
    numbers: Any = trio.numbers
    inside = await lift_bits(await less_words(words, table.words("threshold")), numbers)
    bits = SharedArray(numbers, tuple(part.reshape(1, -1) for part in inside.parts))
    values = [table.numbers(f"v{k}") for k in range(width)]
    matrix = SharedArray(numbers, tuple(np.stack(parts, axis=1) for parts in zip(*(one.parts for one in values), strict=True)))  # fmt: skip
    sums = await numbers.dot(bits, matrix)
    return SharedArray(numbers, tuple(part.reshape(-1) for part in sums.parts)) + noise


def _require(given: _Shared | None) -> _Shared:
    if given is None:
        raise LetterError("no site shares rows", where="saqe", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    return given


def expand_seed(seed: bytes, count: int) -> Any:
    """Uniform words of 32 bits."""
    return np.frombuffer(opened(seed).update(bytes(4 * count)), "<u4").astype(np.uint64)


# ---------------------------------------------------------------- at a site and at the three parties


def _width(plan: NoisedPlan, message: Mapping[str, Any]) -> int:
    return len(message["cells"]) * len(plan.numbers)


@task(discloses=promise_min_count)
def charge_sample(island: Any, message: Any) -> Any:
    """Charge the analyst, write down numbers, noise and a seed, and tell how many rows this site will share, up to a power of two; the same again costs nothing and tells the same."""
    plan = _plan(island, message)

    def make(read: Any) -> dict[str, Any]:
        found: DrawnNumbers = read()
        name, seed = f"{_ROWS}-{island.secret.bytes(8).hex()}", island.secret.bytes(SEED)
        island.leave(name, {"thresholds": found.thresholds, "numbers": found.numbers}, at_once=True)
        return {"rows": name, "seed": seed, "noise": add_noise(island, message, plan), "count": fill_up(len(found.thresholds))}  # fmt: skip

    kept = release_numbers(island, message, plan, make)
    return {"rows": int(kept["count"])}


def _plan(island: Any, message: Any) -> NoisedPlan:
    """The plan, if it may be sampled under shares here.

    Raises:
        PolicyError: the statement does not ask for it, or the sizes of its table are no one's business.
    """
    plan = plan_here(island, message)
    if not wants_shares(message):
        raise PolicyError("a sample under shares, and the statement asks for none", where=island.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    require_open(plan)
    return plan


def require_open(plan: NoisedPlan) -> None:
    """Refuse a table how many rows of which nobody may know.

    Raises:
        PolicyError: names the table.
    """
    table = plan.released.table
    if plan.policy.table(table).sizes != "open":
        raise PolicyError(f"under shares everyone sees how many units {table} has at each site, up to a power of two, and its policies do not say sizes: open", where="saqe", remedy=f"let each site write {table}: {{sizes: open}}, or leave sampled_by out: sites then draw their own samples")  # fmt: skip


def _own(island: Any, request: Any, width: int) -> DrawnNumbers:
    """What this site has written down of its rows.

    Raises:
        PolicyError: nobody has paid for it, or the coordinator says another size.
    """
    message = request["message"]
    kept = find_noised(island, message, _plan(island, message))
    if kept is None or int(kept["count"]) != int(request["rows"][island.name]):
        raise PolicyError("a sample is asked for that nobody has paid for, or of another size", where=island.name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    stored = island.left(kept["rows"])
    numbers = np.asarray(stored["numbers"], np.int64).reshape(-1, width)
    return DrawnNumbers(np.asarray(stored["thresholds"], np.uint64), numbers, bytes(kept["seed"]), np.asarray(kept["noise"], np.int64))  # fmt: skip


async def _compare(peers: Peers, request: Any, parties: Sequence[str], me: str) -> None:
    """Let all roles compare what they were asked for, before a row is shared.

    Raises:
        LetterError: another role was asked for something else, or takes part alone.
    """
    about = digest_request(request, parties)
    apart = {*request["rows"], *parties} ^ {me, *peers.names}
    await peers.broadcast(np.frombuffer(about, np.uint8))
    for other, told in (await peers.gather()).items():
        if apart or not isinstance(told, np.ndarray) or told.tobytes() != about:
            raise LetterError(f"{', '.join(sorted(apart)) or other} was asked for something else than {me}", where="saqe", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip


@task(discloses=promised_of)
async def share_numbers(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Share a site's numbers, its noise and the words of its seed with three other parties."""
    names = [str(one) for one in parties]
    _require_three(request, names)
    plan = _plan(island, request["message"])
    width = _width(plan, request["message"])
    own = _own(island, request, width)
    await _compare(peers, request, names, island.name)
    total = sum(int(one) for one in request["rows"].values())
    secret = island.secret
    await send_table(peers, names, secret, own.columns(), layout=_layout(width), capacity=int(request["rows"][island.name]))  # fmt: skip
    await send_table(peers, names, secret, {"u": expand_seed(own.seed, total)}, layout=_SEEDED, capacity=total)
    await send_table(peers, names, secret, {"n": own.noise}, layout=_ADDED, capacity=width)
    _note(island, request, plan, names)
    return {}


@task(discloses=promised_of)
async def sum_sample(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part as one of three; return this party's part of the noised sums."""
    names, message = [str(one) for one in parties], request["message"]
    _require_three(request, names)
    width, own = int(request["width"]), {}
    if island.data is not None:
        plan = _plan(island, message)
        if width != _width(plan, message):
            raise LetterError(f"{width} sums, and the statement has {_width(plan, message)}", where="saqe", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        own[me] = _own(island, request, width)
    await _compare(peers, request, names, me)
    trio = await ReplicatedComputation(island, peers, names, me, ReplicatedSharing(WordRing(64))).trio()
    rows = {str(site): int(count) for site, count in request["rows"].items()}
    sums = await draw_sums(trio, rows, width, own)
    if island.data is not None:
        _note(island, request, plan, names)
    table = SharedTable({"n": sums}, trio.constant(np.ones(width, np.uint64), 1))
    return {"part": await outward_rows(table, ordered=True)}


def _require_three(request: Any, parties: Sequence[str]) -> None:
    chosen = choose_three([str(site) for site in request["rows"]])
    if list(parties) != chosen or sorted(request["rows"]) != sorted(map(str, request["message"]["sites"])):
        raise LetterError(f"{', '.join(parties)} are to hold the shares, and the statement is one for {', '.join(chosen)}", where="saqe", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip


def _note(island: Any, request: Any, plan: NoisedPlan, parties: Sequence[str]) -> None:
    message = request["message"]
    write_event(island, message, plan, f"shares of the numbers of {len(read_cells(island, message))} groups, for {', '.join(parties)}", {})  # fmt: skip


# ---------------------------------------------------------------- at the coordinator


async def open_sample(fed: Federation, plan: NoisedPlan, message: Mapping[str, Any]) -> tuple[Any, float]:
    """The noised sums of each group over a sample, ``(groups, numbers)``, and how many bytes the session is expected to take.

    Args:
        fed: the sites.
        plan: the plan.
        message: the request, with groups and rates.
    """
    sites, width = list(fed.parties.names), len(message["cells"]) * len(plan.numbers)
    told = await fed.ask_all(fed.parties, charge_sample, message)
    known = dict(zip(told.senders.names, told.values, strict=True))
    missing = next((name for name in sites if name not in known), None)
    if missing is not None:
        why = told.rejected.get(missing) or told.errors.get(missing) or "it did not answer"
        raise LetterError(f"{missing} takes no part: {why}", where="saqe", remedy="start all sites, and ask within what they allow")  # fmt: skip
    request = {"message": dict(message), "rows": {name: int(known[name]["rows"]) for name in sites}, "width": width}
    parties = choose_three(sites)
    roles = {name: (name, sum_sample.with_args(request=request, parties=parties, me=name) if name in parties else share_numbers.with_args(request=request, parties=parties)) for name in dict.fromkeys([*parties, *sites])}  # fmt: skip
    got = await fed.session(roles)
    found = join_parts({party: got[party]["part"] for party in parties[:2]}, layout={"n": None}, rows=width)
    return found["n"].reshape(len(message["cells"]), -1), expect_session(request, parties, width)


def guess_session(plan: NoisedPlan, sites: int, width: int) -> float:
    """Bytes of the session for 256 units in groups at each site, as long as nobody has told how many there are."""
    names = [f"site {k}" for k in range(max(2, sites))]
    request = {"message": {"sql": plan.statement.sql}, "rows": dict.fromkeys(names, 256), "width": width}
    return expect_session(request, choose_three(names), width)


def expect_session(request: Mapping[str, Any], parties: Sequence[str], width: int) -> float:
    """Bytes of the session, and of the contact before it: what sites share, and what the parties send for zeros."""
    rows: dict[str, int] = dict(request["rows"])
    total, roles = sum(rows.values()), len({*rows, *parties})
    shared = 0
    for site, own in rows.items():
        for layout, count in ((_layout(width), own), (_SEEDED, total), (_ADDED, width)):
            shared += sharing_nbytes(layout, count, among=site in parties)
    rehearsal = ShareRehearsal(relayed_nbytes)
    trio = rehearsal.trio

    async def work() -> Any:
        table = empty_table(trio, _layout(width), total)
        seeded, added = empty_table(trio, _SEEDED, total), empty_table(trio, _ADDED, width)
        sums = await sum_inside(seeded.words("u"), table, added.numbers("n"), width)
        return await outward_rows(SharedTable({"n": sums}, trio.constant(np.ones(width, np.uint64), 1)), ordered=True)

    part = rehearsal.play(work())
    agreed = roles * (roles - 1) * relayed_nbytes(M.nbytes(np.zeros(16, np.uint8)))
    asked = M.nbytes(dict(request))
    return float(shared + rehearsal.nbytes + 2 * M.nbytes(part) + agreed + roles * (asked + ROLE_NBYTES) + len(rows) * (asked + 2 * CONTACT_NBYTES))  # fmt: skip
