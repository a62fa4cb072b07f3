"""`SecureBoost`: boosted trees over columns at several owners, those that XGBoost grows on all columns in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.message import Bits
from atoll.core.requests.island import Secret
from atoll.core.validation import require_parts
from atoll.secure.encrypted import Paillier
from atoll.trees.histogram import TreeLimits

from ..model import GuestRows, Part, Save, VerticalModel, require
from .boosting import (
    MOST_OUTPUTS,
    Boosting,
    ColumnOwners,
    GradientUnits,
    GuestSums,
    HostColumns,
    HostRole,
    HostSums,
    PlainSums,
    grow_round,
)
from .columns import OwnedColumns, Splits
from .joint import GuestTrees
from .sealed import GuestCipher, HostCipher, predict_cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers

__all__ = ["SecureBoost"]

Given = TypeVar("Given")


@dataclass(frozen=True, kw_only=True)
class SecureBoost(VerticalModel):
    """Boosted trees over columns at several owners, without loss: XGBoost's trees of all columns in one place.

    Each owner finds XGBoost's cuts of its own columns (``tree_method="hist"``, rows in the common order). The gain of a split is
    ``G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)`` (Chen, Guestrin 2016, equation 7), in single precision where XGBoost rounds it, from exact sums of
    gradients in units of ``2^-24``. Of equal gains the first column's counts, the guest's first, then the hosts' in their order.

    ============  ========================================================  ====================================================
    security      what a host sees                                          what the guest sees of a host's columns
    ============  ========================================================  ====================================================
    ``paillier``  ciphertexts under the guest's key; which rows share       how many columns and bins, and the fullest bin; sums
                  a leaf                                                    of gradients by bin; which rows its splits send left
    ``none``      all gradients, and so all labels; which rows share        the same
                  a leaf
    ============  ========================================================  ====================================================

    Cheng et al. 2021, "SecureBoost: A Lossless Federated Learning Framework". The parties follow the protocol: a host that answers with false
    sums makes a bad model, and a guest that sends made-up gradients, such as one 1 among zeros, learns into which bin a row falls. With ``min_bin_rows`` it shares this bin with
    others; that does not prevent all: which way a row goes at a split still shows, and a leaf may have few rows.

    Attributes:
        trees: boosting rounds; a multiclass model has a tree for each class and round.
        depth: levels of splits.
        rate: learning rate: a leaf is ``-rate G / (H + reg_lambda)``.
        bins: most bins of a column.
        reg_lambda: L2 penalty of leaves.
        gamma: a split must gain more than this.
        min_child_weight: least sum of second derivatives in a child.
        min_bin_rows: fewest training rows in a bin of a column; neighbouring bins with fewer are one. Above 1, trees differ from XGBoost's.
        security: see above.
        cipher: the encryption of ``paillier``.
        packed: whether a host sends several sums in a ciphertext (Fu et al. 2021, "VF2Boost", section 5.2); without, each has one of its own.
        batch: rows whose gradients travel in one message, so that hosts check them and add them up while the guest encrypts the next ones (VF2Boost, section 4.1); 0 sends all at once.
        optimistic: whether hosts go on with the splits that the guest alone would make while their sums are opened and compared, and take back those that a host's column beats
            (VF2Boost, section 4.2). A host then sees where rows go at these too, and the guest sums of their leaves.
        short_exponents: whether noise has exponents of 448 bits: encryption takes less than half the time, under a further assumption, see `KeyOwner`.
    """

    categories: ClassVar[bool] = True
    trees: int = 20
    depth: int = 3
    rate: float = 0.3
    bins: int = 32
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_bin_rows: int = 1
    security: Literal["paillier", "none"] = "paillier"
    cipher: Paillier = field(default_factory=Paillier)
    packed: bool = True
    batch: int = 0
    optimistic: bool = False
    short_exponents: bool = False

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        bounds = (
            ("trees", self.trees >= 1, "use at least 1 tree"),
            ("depth", 1 <= self.depth <= 16, "use 1 to 16 levels"),
            ("rate", 0 < self.rate <= 1, "use a number above 0, at most 1"),
            ("bins", 2 <= self.bins <= 256, "use 2 to 256 bins"),
            ("reg_lambda", 0 <= self.reg_lambda < np.inf, "use a finite number >= 0"),
            ("gamma", 0 <= self.gamma < np.inf, "use a finite number >= 0"),
            ("min_child_weight", 0 <= self.min_child_weight < np.inf, "use a finite number >= 0"),
            ("min_bin_rows", self.min_bin_rows >= 1, "use at least 1 row"),
            ("batch", self.batch >= 0, "use a number of rows, or 0 for all at once"),
            ("security", self.security in ("paillier", "none"), "use 'paillier' or 'none'"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="SecureBoost", remedy=remedy)
        if self.security == "none" and (self.short_exponents or self.cipher != Paillier()):
            name = "short_exponents" if self.short_exponents else "cipher"
            raise CompositionError(f"{name} with security='none'", where="SecureBoost", remedy=f"leave {name} out")

    @property
    def limits(self) -> TreeLimits:
        """What trees may become."""
        return TreeLimits(self.rate, self.depth, self.reg_lambda, self.gamma, self.min_child_weight, single=True)

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        assumed = "Paillier's assumption" + (" and noise with exponents of 448 bits" if self.short_exponents else "")
        sees = {
            "none": "the gradients of all training rows, and so their labels",
            "paillier": f"nothing of gradients and labels: ciphertexts of {self.cipher.key_bits} bits under the guest's key, under {assumed}",
        }[self.security]
        return {
            "host": [
                sees,
                "which training rows share a leaf, and where rows go at its own splits"
                + (", and at the guest's splits that are tried and taken back" if self.optimistic else ""),
                "its own splits: column, value, and which leaf",
            ],
            "guest": [
                "how many columns each host has, how many bins each column, and which bin is the fullest",
                "sums of gradients by leaf, column and bin of each host, in the order of the bins"
                + (f", each of at least {self.min_bin_rows} training rows" if self.min_bin_rows > 1 else "")
                + (", and those of leaves that are tried and taken back" if self.optimistic else ""),
                "which rows go left at each of a host's splits, but neither its columns nor its values",
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted; without encryption about 10 ns a value and level.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: trees a round.
        """
        trees = self.trees * outputs
        values = rows * sum(columns) * trees * self.depth
        seconds, sums = 1e-8 * values, 2 ** (self.depth - 1) * sum(columns[1:]) * self.bins
        if self.security == "none":
            return {"seconds": seconds, "bytes": 16.0 * trees * (rows * (len(columns) - 1) + sums)}
        more: dict[str, Any] = {
            "rows": rows,
            "columns": columns[1:],
            "bins": self.bins,
            "trees": trees,
            "depth": self.depth,
        }
        found = predict_cost(self.cipher, self.short_exponents, **more)
        return {**found, "seconds": found["seconds"] + seconds}

    # The roles.

    async def train_guest(
        self,
        rows: GuestRows,
        peers: Peers | None = None,
        hosts: Sequence[str] = (),
        *,
        secret: Secret | None = None,
        state: Any = None,
        save: Save | None = None,
    ) -> dict[str, Any]:
        """The guest's role: grow the trees with the hosts, or alone; return the guest's part of the model.

        Args:
            rows: the training rows.
            peers: the session; ``None`` without hosts.
            hosts: the hosts' roles, in the order of their columns.
            secret: the guest's entropy, for its key.
            state: what ``save`` kept last.
            save: called after each round with what a resumed role needs.
        """
        own = OwnedColumns(rows.x, self.bins, self.min_bin_rows)
        if not own.features and not hosts:
            return {"base": rows.base, "trees": GuestTrees().packed(), "splits": Splits().packed()}
        if state is None:
            told = {host: HostColumns.of(await _of(peers).recv(host)) for host in hosts}
            state = {
                "hosts": {host: each.packed() for host, each in told.items()},
                "keys": None,
                "round": 0,
                "boosting": None,
            }
            if not own.features and not any(len(each.counts) for each in told.values()):
                raise DataError(
                    "no party has a column to split", where="SecureBoost", remedy="give one party a feature"
                )
        known = {host: HostColumns.of(state["hosts"][host]) for host in hosts}
        sums: GuestSums = PlainSums()
        public: dict[str, Any] = {"security": "none"}
        keys = state["keys"]
        if hosts and self.security == "paillier":
            made = (_units(rows), len(rows.x), _of(secret), keys, self.short_exponents, self.packed)
            sealed = GuestCipher.of(self.cipher, *made)
            sums, public, keys = sealed, sealed.public, sealed.owner.keys
        if hosts and state["keys"] is None:
            await _of(peers).broadcast({**public, "outputs": rows.objective.outputs}, hosts)
        boosting = _boosting(rows, state["boosting"])
        owners = ColumnOwners(own, peers, known, sums, self.batch, self.optimistic)
        for done in range(state["round"], self.trees):
            await grow_round(owners, boosting, rows.targets, self.limits, _units(rows))
            if save is not None:
                await save({**state, "keys": keys or [], "round": done + 1, "boosting": boosting.packed()})
        return {"base": np.asarray(boosting.base), "trees": boosting.trees.packed(), "splits": boosting.splits.packed()}

    async def train_host(
        self,
        x: NDArray[np.float32],
        peers: Peers,
        guest: str,
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
    ) -> dict[str, Any]:
        """A host's role: answer the guest; return the host's part of the model.

        Args:
            x: the training rows in the common order.
            peers: the session.
            guest: the guest's role.
            secret: the host's entropy, for the noise of its answers.
            state: what ``save`` kept last.
            save: called after each round with what a resumed role needs.
        """
        own = OwnedColumns(x, self.bins, self.min_bin_rows)
        if state is None:
            await peers.send(guest, HostColumns(own.counts, own.fullest).packed())
            state = {"public": await peers.recv(guest), "round": 0, "splits": Splits().packed()}
        sums, splits = self._host_sums(state["public"], len(x), secret), Splits.unpacked(state["splits"])
        role = HostRole(own, sums, splits, self.depth, state["public"]["outputs"], self.optimistic)
        for done in range(state["round"], self.trees):
            await self._host_round(role, peers, guest)
            if save is not None:
                await save({**state, "round": done + 1, "splits": role.splits.packed()})
        return role.splits.packed()

    async def _host_round(self, role: HostRole, peers: Peers, guest: str) -> None:
        while True:
            message = await peers.recv(guest)
            if isinstance(message, dict) and message.get("do") == "grown":
                role.end_round()
                return
            reply = role.answer(message)
            if reply is not None:
                await peers.send(guest, reply)

    def _host_sums(self, public: Any, rows: int, secret: Secret) -> HostSums:
        """A host's half of the sums, as it was told."""
        told = public.get("security") if isinstance(public, Mapping) else None
        require(told == self.security, f"security={told!r}, where {self.security!r} was agreed")
        outputs = public.get("outputs")
        require(type(outputs) is int and 1 <= outputs <= MOST_OUTPUTS, f"{outputs!r} trees a round")
        return PlainSums() if self.security == "none" else HostCipher.of(self.cipher, public, rows, secret, self.packed)

    def train_pooled(self, rows: GuestRows) -> Part:
        """XGBoost's trees of rows that have all columns in one place."""
        growing = self.train_guest(rows)
        try:
            growing.send(None)  # nobody is asked, so it never waits
        except StopIteration as done:
            part: Part = done.value
            return part
        raise RuntimeError("a training without hosts waited for one")

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """Whether each row goes left at each of the host's splits, ``(rows, splits)``."""
        return {"sides": Bits.pack(Splits.unpacked(part).walk(x))}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.bool_]:
        """A host's answer to where rows go at each of its splits, ``(rows, splits)``.

        Raises:
            MessageError: it is none, or one for other splits than the host has made: the answers of the next host would be taken for its own.
        """
        splits = dict(np.asarray(part["trees"]["made"]).tolist()).get(host, 0)
        sides = message.get("sides") if isinstance(message, Mapping) else None
        good = isinstance(sides, Bits) and sides.shape == (rows, splits)
        require(good, f"no answers of {name!r} for {rows} rows at {splits} splits")
        return np.asarray(sides.unpack())  # type: ignore[union-attr]

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32]:
        """The margins of rows, ``(rows, outputs)``, from what all owners say of them."""
        sides = [Splits.unpacked(part["splits"]).walk(x), *answers]
        return GuestTrees.unpacked(part["trees"]).margins(np.asarray(part["base"]), sides)


def _units(rows: GuestRows) -> GradientUnits:
    """The units of gradients."""
    return GradientUnits.of(rows.objective, rows.targets, rows.base)


def _boosting(rows: GuestRows, state: Any) -> Boosting:
    """The trees so far, from what a checkpoint kept; none for ``None``."""
    base = rows.base
    if state is None:
        margin = np.tile(base.astype(np.float32), (len(rows.x), 1))
        return Boosting(rows.objective, base, margin, GuestTrees(), Splits())
    trees, splits = GuestTrees.unpacked(state["trees"]), Splits.unpacked(state["splits"])
    return Boosting(rows.objective, base, np.array(state["margin"], np.float32), trees, splits)


def _of(given: Given | None) -> Given:
    if given is None:
        raise ConfigError(
            "hosts without a session, or without the guest's entropy",
            where="SecureBoost",
            remedy="give peers and secret",
        )
    return given
