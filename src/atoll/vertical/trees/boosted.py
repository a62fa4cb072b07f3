"""What models of boosted trees over columns at several owners share: settings, the roles of guest and host, and predictions.

How a host adds up gradients that it does not see is the model's own: `BoostedTrees.meet_hosts` and `BoostedTrees.meet_guest` return both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event
from atoll.core.message import Bits
from atoll.core.requests.island import Secret
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
    grow_round,
)
from .columns import OwnedColumns, Splits
from .joint import GuestTrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers

__all__ = ["BoostedTrees", "units_of"]

Given = TypeVar("Given")
Spend = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class BoostedTrees(VerticalModel):
    """Boosted trees over columns at several owners; see `SecureBoost` for the settings."""

    categories: ClassVar[bool] = True
    reads_groups: ClassVar[bool] = True
    as_listed: ClassVar[bool] = True
    trees: int = 20
    depth: int = 3
    rate: float = 0.3
    bins: int = 32
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_bin_rows: int = 1
    max_cat_to_onehot: int = 4

    def __post_init__(self) -> None:
        bounds = (
            ("trees", self.trees >= 1, "use at least 1 tree"),
            ("depth", 1 <= self.depth <= 16, "use 1 to 16 levels"),
            ("rate", 0 < self.rate <= 1, "use a number above 0, at most 1"),
            ("bins", 2 <= self.bins <= 256, "use 2 to 256 bins"),
            ("reg_lambda", 0 <= self.reg_lambda < np.inf, "use a finite number >= 0"),
            ("gamma", 0 <= self.gamma < np.inf, "use a finite number >= 0"),
            ("min_child_weight", 0 <= self.min_child_weight < np.inf, "use a finite number >= 0"),
            ("min_bin_rows", self.min_bin_rows >= 1, "use at least 1 row"),
            ("max_cat_to_onehot", self.max_cat_to_onehot >= 1, "use a number of categories, at least 1"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where=type(self).__name__, remedy=remedy)

    @property
    def limits(self) -> TreeLimits:
        """What trees may become."""
        return TreeLimits(self.rate, self.depth, self.reg_lambda, self.gamma, self.min_child_weight, single=True)

    @property
    def streaming(self) -> tuple[int, bool]:
        """How many rows' gradients travel in one message, 0 for all; and whether hosts go on with likely splits."""
        return 0, False

    async def meet_hosts(
        self, rows: GuestRows, known: Mapping[str, HostColumns], peers: Peers, secret: Secret, kept: Any, spend: Spend | None
    ) -> tuple[Mapping[str, GuestSums], Any]:  # fmt: skip
        """At the guest, before the first round and when a training goes on: its half of the sums with each host, and what a checkpoint must keep of them, not ``None``.

        Args:
            rows: the training rows.
            known: what is known of each host's columns.
            peers: the session.
            secret: the guest's entropy.
            kept: what a checkpoint kept; ``None`` at the first start, when it also tells the hosts what `meet_guest` reads.
            spend: books a release of noise in the guest's ledger, for models that release.
        """
        raise NotImplementedError

    async def meet_guest(self, own: OwnedColumns, told: Any, peers: Peers, guest: str, secret: Secret) -> HostSums:
        """At a host: its half of the sums; ``told`` is what the guest told at the first start."""
        raise NotImplementedError

    async def grow(self, owners: ColumnOwners, boosting: Boosting, rows: GuestRows, kept: Any) -> None:
        """At the guest: grow the trees of a round; ``kept`` is what `meet_hosts` returned, ``None`` without hosts."""
        del kept
        await grow_round(owners, boosting, rows.targets, self.limits, units_of(rows))

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
        spend: Spend | None = None,
    ) -> dict[str, Any]:
        """The guest's role: grow the trees with the hosts, or alone; return the guest's part of the model.

        Args:
            rows: the training rows.
            peers: the session; ``None`` without hosts.
            hosts: the hosts' roles, in the order of their columns.
            secret: the guest's entropy, for its key.
            state: what ``save`` kept last.
            save: called after each round with what a resumed role needs.
            spend: books a release in the guest's ledger.
        """
        own = OwnedColumns(rows.x, self.bins, self.min_bin_rows, rows.groups or None)
        if not own.features and not hosts:
            return {"base": rows.base, "trees": GuestTrees().packed(), "splits": Splits().packed()}
        if state is None:
            told = {host: HostColumns.of(await _given(peers).recv(host)) for host in hosts}
            state = {
                "hosts": {host: each.packed() for host, each in told.items()},
                "keys": None,
                "round": 0,
                "boosting": None,
            }
            if not own.features and not any(len(each.counts) for each in told.values()):
                raise DataError(
                    "no party has a column to split", where=type(self).__name__, remedy="give one party a feature"
                )
        known = {host: HostColumns.of(state["hosts"][host]) for host in hosts}
        halves, kept = (
            await self.meet_hosts(rows, known, _given(peers), _given(secret), state["keys"], spend)
            if hosts
            else ({}, None)
        )
        boosting = _boosting(rows, state["boosting"])
        owners = ColumnOwners(own, peers, known, halves, *self.streaming, one_hot=self.max_cat_to_onehot)
        for done in range(state["round"], self.trees):
            await self.grow(owners, boosting, rows, kept)
            if save is not None:
                await save({**state, "keys": kept, "round": done + 1, "boosting": boosting.packed()})
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
        groups: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """A host's role: answer the guest; return the host's part of the model.

        Args:
            x: the training rows in the common order.
            peers: the session.
            guest: the guest's role.
            secret: the host's entropy, for the noise of its answers.
            state: what ``save`` kept last.
            save: called after each round with what a resumed role needs.
            groups: the number of each input's column of categories, see `GuestRows`.
        """
        own = OwnedColumns(x, self.bins, self.min_bin_rows, groups)
        if state is None:
            await peers.send(guest, HostColumns.told_by(own).packed())
            state = {"public": await peers.recv(guest), "round": 0, "splits": Splits().packed()}
        outputs = self._read_outputs(state["public"])
        sums = await self.meet_guest(own, state["public"], peers, guest, secret)
        role = HostRole(own, sums, Splits.unpacked(state["splits"]), self.depth, outputs, self.streaming[1])
        for done in range(state["round"], self.trees):
            await self._host_round(role, peers, guest)
            if save is not None:
                await save({**state, "round": done + 1, "splits": role.splits.packed()})
        return role.splits.packed()

    def _read_outputs(self, public: Any) -> int:
        """The trees of a round, from what the guest told."""
        told = public.get("security") if isinstance(public, Mapping) else None
        require(told == self.security, f"security={told!r}, where {self.security!r} was agreed")
        outputs = public.get("outputs")
        require(type(outputs) is int and 1 <= outputs <= MOST_OUTPUTS, f"{outputs!r} trees a round")
        return int(outputs)

    async def _host_round(self, role: HostRole, peers: Peers, guest: str) -> None:
        while True:
            message = await peers.recv(guest)
            if isinstance(message, dict) and message.get("do") == "grown":
                role.end_round()
                return
            reply = role.answer(message)
            if reply is not None:
                await peers.send(guest, reply)

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


def units_of(rows: GuestRows) -> GradientUnits:
    """The units of gradients."""
    return GradientUnits.of(rows.objective, rows.targets, rows.base)


def _boosting(rows: GuestRows, state: Any) -> Boosting:
    """The trees so far, from what a checkpoint kept; none for ``None``."""
    base = rows.base
    if state is None:
        margin = np.tile(base.astype(np.float32), (len(rows.x), 1))
        return Boosting(rows.objective, base, margin, GuestTrees(), Splits())
    trees, splits = GuestTrees.unpacked(state["trees"]), Splits.unpacked(state["splits"])
    seen = None if state.get("seen") is None else np.array(state["seen"], np.float32)
    return Boosting(rows.objective, base, np.array(state["margin"], np.float32), trees, splits, seen)


def _given(given: Given | None) -> Given:
    if given is None:
        raise ConfigError(
            "hosts without a session, or without the guest's entropy",
            where="boosted trees",
            remedy="give peers and secret",
        )
    return given
