"""Virtual masks: a simulation's masked sum without the masks. The words, their sum, the steps, the losses and the bytes are those of real masks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.event import MasksVirtual
from atoll.core.requests.party import Parties, among
from atoll.core.sealing import VirtualSealing

from ..keystream import SEED, Keystream
from ..words import decode_sum, require_enough
from .agreement import rings
from .party_steps import add_missing, deal, label_of, masked, reveal, vote
from .unmasking import SHARE, Opening

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.request import Reduced

    from .agreement import Agreement

__all__ = ["reduce_virtually"]


async def reduce_virtually(reduction: Reduction, agreed: Agreement) -> Reduced:
    """Add up words that nobody masks, in the steps of a masked sum.

    Raises:
        CompositionError: the parties are real ones, which must mask.
    """
    if reduction.live:
        raise CompositionError(
            "masks='virtual' between organisations", where="SecureAggregation", remedy="use masks='real'"
        )
    reduction.world.note(MasksVirtual)
    sizes, quorum, message = _Sizes(agreed), max(agreed.least, agreed.threshold), agreed.message()
    size = M.nbytes(message)
    sent = sizes.letters(reduction.path_of(deal))
    dealt = await reduction.rehearse(
        reduction.parties, deal, message, quorum=quorum, up=sizes.dealing + sent.sum(axis=1), size=size
    )
    alive = among(reduction.parties.positions, dealt.positions)
    mail, count = sizes.count_received(sent, alive)
    reduction.meter.count_relayed(int(mail.sum()), count)
    inner = reduction.terms.down if reduction.terms.down is not None else M.nbytes(reduction.request.message)
    own = inner[alive] if isinstance(inner, np.ndarray) and len(inner) == len(alive) else inner
    terms = reduction.terms.with_down(own + mail[alive] + M.nbytes(None) - size)
    # Masks cancel in the sum, so words that nobody masks have the same total to the bit; what is left to imitate is steps and bytes.
    found = await reduction.fold(masked, message, parties=dealt, terms=terms)
    kept = Parties(reduction.world.roster, found.senders)
    require_enough(kept, quorum, rejected=found.rejected)
    inside = among(reduction.parties.positions, found.senders)
    form = await _run_last_steps(reduction, agreed, sizes, kept, inside, alive)
    layout, noise, counts = agreed.layout(form), reduction.request.uplink.excess, dict[str, int]()
    lanes = {lane: np.array(total.value) for lane, total in found.totals.items()}
    if noise is not None:
        seed = reduction.world.secret(f"{reduction.slot}/excess").bytes(SEED)
        add_missing(noise, layout, lanes, len(kept), Keystream(seed))
        counts = {"excess_left": 0} if agreed.excess(len(kept)) is not None else {}
    return decode_sum(layout, lanes, found.senders, counts=counts)


async def _run_last_steps(
    reduction: Reduction, agreed: Agreement, sizes: _Sizes, kept: Parties, inside: Any, alive: Any
) -> Any:
    """The last steps; return the form of the totals, which one party tells."""
    asked = {"kept": np.flatnonzero(inside).tolist(), "lost": np.flatnonzero(alive & ~inside).tolist()}
    label, some, who = label_of(asked["kept"], asked["lost"]), min(agreed.threshold, len(kept)), kept
    mail: Any = 0
    if agreed.active:
        path = reduction.path_of(vote, label)
        sent = sizes.votes(path, inside)
        who = await reduction.rehearse(
            kept, vote, asked, at=label, quorum=some, up=M.nbytes(None) + sent.sum(axis=1)[inside]
        )
        voted = among(reduction.parties.positions, who.positions)
        letters, count = sizes.count_received(sent * voted[:, None], voted)
        reduction.meter.count_relayed(int(letters.sum()), count)
        mail = letters[voted]
    told: list[Any] = []
    shown = await reduction.rehearse(
        who, reveal, asked, at=label, quorum=some, letters=mail, told=told,
        up=lambda: sizes.revealing(told[0]["form"], alive, inside)[among(reduction.parties.positions, who.positions)],
    )  # fmt: skip
    if agreed.degree < len(agreed.names) - 1:  # where all hold shares, the quorum is enough
        _require_shares(agreed, asked, {agreed.place(name) for name in shown.names})
    return told[0]["form"]


def _require_shares(agreed: Agreement, asked: dict[str, list[int]], shown: set[int]) -> None:
    """Require that each seed which a real sum opens has as many holders that answered as its threshold; see `Opening`.

    Raises:
        QuorumError: it has not: in a sparse graph too many neighbours of one party were lost.
    """
    for use, place in Opening(agreed, {}, asked["kept"], asked["lost"]).needed:
        count = len(shown & set(agreed.holders(place)))
        if count < agreed.threshold:
            raise QuorumError(
                f"{count} shares of the {'key' if use == 'key' else 'seed'} of {agreed.names[place]}, fewer than the threshold of {agreed.threshold}",
                where="masked sum",
                remedy="use more neighbours, or lower the threshold",
            )


class _Sizes:
    """The bytes of a masked sum's replies and letters, by arithmetic."""

    def __init__(self, agreed: Agreement) -> None:
        self.agreed = agreed
        self.lengths = _lengths(agreed.names)
        self.holders = _holders(len(agreed.names), agreed.degree, agreed.order)
        here = self.holders >= 0
        self._sums = np.where(here, self.lengths[:, None] + self.lengths[self.holders], 0)
        count, uses = here.sum(axis=1), agreed.uses
        self.dealing = np.array([_dealing(h, uses) for h in count.tolist()], dtype=np.int64)

    def _of(self, path: str, numbers: Any, content: Any) -> NDArray[np.int64]:
        """Bytes of the letters of each party to each holder.

        Args:
            path: the request in which they are written.
            numbers: the number of each letter among its sender's, as an array like the holders.
            content: ``(sender, to, number) -> content`` for one letter with names of these lengths.
        """
        codes = self._sums * 4 + _longer(numbers)
        table = np.bincount(codes.ravel())
        for code in np.flatnonzero(table).tolist():
            table[code] = 0 if code < 4 else _letter(len(path.encode()), code >> 2, code & 3, content)
        return np.where(self.holders >= 0, table[codes], 0)

    def letters(self, path: str) -> NDArray[np.int64]:
        """Bytes of the letters with shares, ``(parties, holders)``."""
        places = np.broadcast_to(np.arange(self.holders.shape[1]), self.holders.shape)
        return self._of(path, 2 * places + 1, self.agreed.uses)

    def votes(self, path: str, inside: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Bytes of the letters with votes, among the parties in the sum."""
        sends = (self.holders >= 0) & inside[self.holders] & inside[:, None]
        return np.where(sends, self._of(path, np.cumsum(sends, axis=1) - 1, "vote"), 0)

    def count_received(self, sent: NDArray[np.int64], alive: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
        """Bytes of the letters of parties that are alive to each party that is, and how many they are."""
        got = np.zeros(len(alive), dtype=np.int64)
        there = (self.holders >= 0) & (sent > 0) & alive[:, None] & alive[self.holders]
        np.add.at(got, self.holders[there], sent[there])
        return got, int(there.sum())

    def revealing(self, form: Any, alive: NDArray[np.bool_], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Bytes of what each party reveals: a share for each dealer that is alive and whose holder it is, and one more for those in the sum if it has excess noise."""
        told: dict[str, Any] = {"shares": {}, "form": form}
        got = self._shares(alive)
        if self.agreed.excess(int(inside.sum())) is not None:
            told["excess"] = {}
            got += self._shares(inside)
        return got + M.nbytes(told)

    def _shares(self, dealers: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Bytes of the named shares of these dealers at each holder."""
        got = np.zeros(len(dealers), dtype=np.int64)
        dealer, place = np.nonzero((self.holders >= 0) & dealers[:, None])
        np.add.at(got, self.holders[dealer, place], (9 + SHARE + self.lengths)[dealer])
        return got


@functools.lru_cache(maxsize=64)
def _lengths(names: tuple[str, ...]) -> NDArray[np.int64]:
    """Bytes of each name."""
    made = np.array(list(map(len, names if "".join(names).isascii() else map(str.encode, names))))
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=256)
def _dealing(holders: int, uses: tuple[str, ...]) -> int:
    """Bytes of the reply of a party that deals shares of these seeds to so many holders."""
    anchor = {"anchor": bytes(SEED)} if len(uses) > 2 else {}
    return M.nbytes({"key": bytes(SEED), "own": bytes(SEED), "shares": bytes(len(uses) * SEED * holders), **anchor})


@functools.lru_cache(maxsize=64)
def _holders(parties: int, degree: int, order: int) -> NDArray[np.int64]:
    """The holders of each party's shares, ``(parties, most holders)``, ascending and filled up with -1."""
    rows = [sorted({*near, i}) for i, near in enumerate(rings(parties, degree, order))]
    most = max(map(len, rows))
    return np.array([row + [-1] * (most - len(row)) for row in rows], dtype=np.int64)


def _longer(numbers: Any) -> Any:
    """Bytes by which a letter's number is longer than a small one; see ``Fields`` of messages: ``bit_length // 8``."""
    return (np.asarray(numbers) >= 1 << 7).astype(np.int64) + (np.asarray(numbers) >= 1 << 15)


@functools.lru_cache(maxsize=4096)
def _letter(path_bytes: int, names: int, longer: int, kind: str | tuple[str, ...]) -> int:
    """Bytes of one letter between names of together so many bytes, in a request whose path has so many."""
    sealing, path, number = VirtualSealing(), "x" * path_bytes, (1, 1 << 7 | 1, 1 << 15 | 1)[longer]
    sender, to = "x" * (names // 2), "x" * (names - names // 2)

    def draw(n: int) -> bytes:
        return bytes(n)

    content: Any = "0" * 32
    if kind != "vote":  # the seeds whose shares it has
        dealt = dict.fromkeys(kind, bytes(SHARE))
        sealed = sealing.seal(sender, to, path, number - 1, dealt, draw).encode()
        content = {"key": bytes(SEED), "shares": sealed}
    return sealing.seal(sender, to, path, number, content, draw).nbytes
