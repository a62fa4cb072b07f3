"""`SecureBoost`: boosted trees over columns at several owners, those that XGBoost grows on all columns in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked
from atoll.trees.histogram import TreeLimits
from atoll.trees.objectives import TreeLoss

from .boosting import (
    Boosting,
    ColumnOwners,
    GradientUnits,
    GuestSums,
    HostRole,
    HostSums,
    PlainSums,
    grow_round,
    require,
)
from .columns import OwnedColumns, Splits
from .joint import GuestTrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["SecureBoost"]

Save = Callable[[Any], Awaitable[None]]
"""Makes the state of a role durable, once all roles have theirs."""


@dataclass(frozen=True, kw_only=True)
class SecureBoost(Checked):
    """Boosted trees over columns at several owners, without loss: XGBoost's trees of all columns in one place.

    Each owner finds XGBoost's cuts of its own columns (``tree_method="hist"``, rows in the common order). The gain of a split is
    ``G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)`` (Chen, Guestrin 2016, equation 7), in single precision where XGBoost rounds it, from exact sums of
    gradients in units of ``2^-24``. Of equal gains the first column's counts, the guest's first, then the hosts' in their order.

    A host sees all gradients, and so all labels, and which rows share a leaf. The guest sees how many columns and bins a host has, sums of gradients by bin, and which rows
    a host's splits send left, but neither the host's columns nor the values of its cuts.

    Cheng et al. 2021, "SecureBoost: A Lossless Federated Learning Framework". The parties follow the protocol: a host that answers with false sums makes a bad model.

    Attributes:
        trees: boosting rounds; a multiclass model has a tree for each class and round.
        depth: levels of splits.
        rate: learning rate: a leaf is ``-rate G / (H + reg_lambda)``.
        bins: most bins of a column.
        reg_lambda: L2 penalty of leaves.
        gamma: a split must gain more than this.
        min_child_weight: least sum of second derivatives in a child.
        security: ``none``: gradients travel as they are.
    """

    trees: int = 20
    depth: int = 3
    rate: float = 0.3
    bins: int = 32
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    security: Literal["none"] = "none"

    def __post_init__(self) -> None:
        bounds = (
            ("trees", self.trees >= 1, "use at least 1 tree"),
            ("depth", 1 <= self.depth <= 16, "use 1 to 16 levels"),
            ("rate", 0 < self.rate <= 1, "use a number above 0, at most 1"),
            ("bins", 2 <= self.bins <= 256, "use 2 to 256 bins"),
            ("reg_lambda", 0 <= self.reg_lambda < np.inf, "use a finite number >= 0"),
            ("gamma", 0 <= self.gamma < np.inf, "use a finite number >= 0"),
            ("min_child_weight", 0 <= self.min_child_weight < np.inf, "use a finite number >= 0"),
            ("security", self.security == "none", "use 'none'"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="SecureBoost", remedy=remedy)

    @property
    def limits(self) -> TreeLimits:
        """What trees may become."""
        return TreeLimits(self.rate, self.depth, self.reg_lambda, self.gamma, self.min_child_weight, single=True)

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        sees = "the gradients of all training rows, and so their labels"
        return {
            "host": [
                sees,
                "which training rows share a leaf, and where rows go at its own splits",
                "its own splits: column, value, and which leaf",
            ],
            "guest": [
                "how many columns each host has, and how many bins each column",
                "sums of gradients by leaf, column and bin of each host, in the order of the bins",
                "which rows go left at each of a host's splits, but neither its columns nor its values",
            ],
        }

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
        own = OwnedColumns(rows.x, self.bins)
        if not own.features and not hosts:
            return rows.without_trees()
        if state is None:
            counts = {host: _counts(await _of(peers).recv(host)) for host in hosts}
            state = {"counts": counts, "keys": None, "round": 0, "boosting": None}
            if not own.features and not any(counts.values()):
                raise DataError(
                    "no party has a column to split", where="SecureBoost", remedy="give one party a feature"
                )
        sums, keys, public = self._guest_sums(state["keys"], rows, secret)
        if state["keys"] is None and hosts:
            await _of(peers).broadcast(public, hosts)
        boosting = rows.boosting(state["boosting"])
        owners = ColumnOwners(own, peers, state["counts"], sums)
        for done in range(state["round"], self.trees):
            await grow_round(owners, boosting, rows.targets, self.limits, rows.units)
            if save is not None:
                await save({**state, "keys": keys, "round": done + 1, "boosting": boosting.packed()})
        return {"base": np.asarray(boosting.base), "trees": boosting.trees.packed(), "splits": boosting.splits.packed()}

    async def train_host(
        self, x: NDArray[np.float32], peers: Peers, guest: str, *, state: Any = None, save: Save | None = None
    ) -> dict[str, Any]:
        """A host's role: answer the guest; return the host's part of the model.

        Args:
            x: the training rows in the common order.
            peers: the session.
            guest: the guest's role.
            state: what ``save`` kept last.
            save: called after each round with what a resumed role needs.
        """
        own = OwnedColumns(x, self.bins)
        if state is None:
            await peers.send(guest, {"counts": np.array(own.counts, np.int64)})
            state = {"public": await peers.recv(guest), "round": 0, "splits": Splits().packed()}
        role = HostRole(own, self._host_sums(state["public"], len(x)), Splits.unpacked(state["splits"]))
        for done in range(state["round"], self.trees):
            await self._host_round(role, peers, guest)
            if save is not None:
                await save({**state, "round": done + 1, "splits": role.splits.packed()})
        return role.splits.packed()

    async def _host_round(self, role: HostRole, peers: Peers, guest: str) -> None:
        while True:
            message = await peers.recv(guest)
            if isinstance(message, dict) and message.get("do") == "grown":
                return
            reply = role.answer(message)
            if reply is not None:
                await peers.send(guest, reply)

    def _guest_sums(self, keys: Any, rows: GuestRows, secret: Secret | None) -> tuple[GuestSums, Any, Any]:
        """The guest's half of the sums, its keys, and what hosts must know of them."""
        return PlainSums(), {}, {"security": "none"}

    def _host_sums(self, public: Any, rows: int) -> HostSums:
        """A host's half of the sums, as it was told."""
        require(
            isinstance(public, Mapping) and public.get("security") == self.security, "another security than was agreed"
        )
        return PlainSums()

    def margins(self, part: Mapping[str, Any], sides: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32]:
        """The margins of rows, ``(rows, outputs)``, from what all owners say of them.

        Args:
            part: the guest's part of the model.
            sides: what `walk` returned at each owner, the guest first.
        """
        return GuestTrees.unpacked(part["trees"]).margins(np.asarray(part["base"]), sides)

    @staticmethod
    def walk(splits: Any, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """At an owner: whether each row goes left at each of its splits, ``(rows, splits)``."""
        return Splits.unpacked(splits).walk(x)


@dataclass(frozen=True)
class GuestRows:
    """The guest's training rows, with labels.

    Attributes:
        x: ``(rows, features)`` in single precision; NaN is missing.
        targets: labels as numbers, or codes of classes.
        objective: the loss.
    """

    x: NDArray[np.float32]
    targets: NDArray[np.float64]
    objective: TreeLoss

    @property
    def base(self) -> NDArray[np.float64]:
        """The margins before the first tree."""
        return self.objective.first_guess(self.objective.label_sums(self.targets), len(self.targets))

    @property
    def units(self) -> GradientUnits:
        """The units of gradients."""
        return GradientUnits.of(self.objective, self.targets, self.base)

    def without_trees(self) -> dict[str, Any]:
        """The model of a guest that has no column."""
        return {"base": self.base, "trees": GuestTrees().packed(), "splits": Splits().packed()}

    def boosting(self, state: Any) -> Boosting:
        """The trees so far, from what a checkpoint kept; none for ``None``."""
        base = self.base
        if state is None:
            margin = np.tile(base.astype(np.float32), (len(self.x), 1))
            return Boosting(self.objective, base, margin, GuestTrees(), Splits())
        trees, splits = GuestTrees.unpacked(state["trees"]), Splits.unpacked(state["splits"])
        return Boosting(self.objective, base, np.array(state["margin"], np.float32), trees, splits)


def _of(peers: Peers | None) -> Peers:
    if peers is None:
        raise ConfigError("hosts without a session", where="SecureBoost", remedy="give the peers of a session")
    return peers


def _counts(message: Any) -> list[int]:
    """The number of cuts of a host's columns."""
    counts = np.asarray(message["counts"]) if isinstance(message, Mapping) and "counts" in message else None
    good = (
        counts is not None
        and counts.ndim == 1
        and counts.dtype.kind in "iu"
        and bool(((counts >= 0) & (counts < 256)).all())
    )
    require(good, "numbers of cuts that are not 0 to 255")
    return list(map(int, counts.tolist()))  # type: ignore[union-attr]
