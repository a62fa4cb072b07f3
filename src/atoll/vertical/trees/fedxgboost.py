"""`FedXGBoost`: XGBoost's trees over columns at several owners without a key: by matrix products, or from labels with noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, PolicyError
from atoll.core.event import Gaussian
from atoll.core.requests.island import Secret
from atoll.privacy import exact_sigma
from atoll.privacy.discrete import GaussianLattice, words_of
from atoll.trees.objectives import SOFTMAX, SQUARED, TreeLoss

from ..model import GuestRows
from .boosted import BoostedTrees, Spend, units_of
from .boosting import Boosting, ColumnOwners, GradientUnits, GuestSums, HostColumns, HostSums, PlainSums, grow_tree
from .columns import OwnedColumns
from .products import ProductGuest, ProductHost, predict_cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers

__all__ = ["FedXGBoost"]

_PRODUCTS = "products"
"""The channel of a session on which parties prepare products."""
_COARSE = 8
"""Bits by which gradients with noise are coarser than others, so that single precision holds them exactly."""


@dataclass(frozen=True, kw_only=True)
class FedXGBoost(BoostedTrees):
    """Boosted trees over columns at several owners whose hosts add up gradients without ciphertexts. Le et al. 2021, "FedXGBoost: Privacy-Preserving XGBoost for Federated Learning".

    ============  ========================================================  ========================================================
    security      what a host sees                                          what the model is
    ============  ========================================================  ========================================================
    ``product``   uniform numbers; which rows share a leaf                  exactly the trees of `SecureBoost`, in fewer seconds and bytes
    ``noise``     gradients of labels with noise, ``(epsilon,               trees whose splits follow these labels, with leaves that
                  delta)``-private; which rows share a leaf                 follow the true ones
    ============  ========================================================  ========================================================

    **product** (FedXGBoost-SMM). The sums of a column are a product of two matrices: which bin each row has, at a host, and the gradients, at the guest. The paper multiplies them by projections (Karr et
    al. 2009): each party learns the other's matrix up to a subspace. Of a leaf of few rows the guest could solve for the bins, and of gradients with two values, which those of the first tree have, a host
    could look for the labels. Here the product comes from oblivious transfers (`atoll.vertical.trees.products`), which show the sums alone, exactly.

    **noise** (FedXGBoost-LDP). The paper adds noise to the gradients of each tree. A gradient of a classification is a probability, which follows from what hosts have seen, minus the label; so noise on the
    label, once, protects all trees at once, and each has less of it. Labels (of several classes, a vector with a 1 at the class) get Gaussian noise for ``epsilon`` and ``delta``, booked in the guest's ledger as
    one release of each row. Splits, and the margins that gradients follow from, are found from noisy labels alone, so that nothing that a host sees tells more of the true ones. The leaves that the guest keeps
    are found from true labels, and hosts never see them. A host's own columns are protected as in `SecureBoost` with ``security="none"``.

    Attributes:
        trees: as of `SecureBoost`, as are ``depth``, ``rate``, ``bins``, ``reg_lambda``, ``gamma``, ``min_child_weight``, ``min_bin_rows`` and ``max_cat_to_onehot``.
        security: see above.
        epsilon: of ``noise``: how much a host can learn of a row's label; above 0.
        delta: of ``noise``: the chance that it learns more.
    """

    security: Literal["product", "noise"] = "product"
    epsilon: float | None = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        noisy = self.security == "noise"
        bounds = (
            ("security", self.security in ("product", "noise"), "use 'product' or 'noise'"),
            ("epsilon", not noisy or (self.epsilon is not None and 0 < self.epsilon < math.inf), "give a number above 0, such as 4.0, with security='noise'"),
            ("delta", 0 < self.delta < 1, "use a number above 0, below 1"),
        )  # fmt: skip
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="FedXGBoost", remedy=remedy)
        if not noisy and (self.epsilon is not None or self.delta != 1e-6):
            name = "delta" if self.epsilon is None else "epsilon"
            raise CompositionError(
                f"{name} with security='product'",
                where="FedXGBoost",
                remedy=f"leave {name} out: products have no noise",
            )

    @property
    def releases(self) -> bool:
        """Whether the guest releases noise."""
        return self.security == "noise"

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        sees = {
            "product": "nothing of gradients and labels: uniform numbers, under AES as an ideal permutation and the hardness of Diffie-Hellman",
            "noise": f"the gradients of all training rows from labels with noise: the label of each row is protected with epsilon {self.epsilon} at delta {self.delta:g}, whatever the number of trees",
        }[self.security]
        return {
            "host": [
                sees,
                "which training rows share a leaf, and where rows go at its own splits",
                "its own splits: column, value or categories, and which leaf",
            ],
            "guest": [
                "how many columns each host has, how many bins each column, which bin is the fullest, and which bins are categories of one column",
                "sums of gradients by leaf, column and bin of each host, in the order of the bins"
                + (f", each of at least {self.min_bin_rows} training rows" if self.min_bin_rows > 1 else ""),
                "which rows go left at each of a host's splits, and of categories which ones, by number; but neither its columns nor its values",
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: trees a round.
        """
        trees = self.trees * outputs
        seconds = 1e-8 * rows * sum(columns) * trees * self.depth
        if self.security == "product":
            found = predict_cost(rows, columns[1:], self.bins, trees, self.depth)
            return {**found, "seconds": found["seconds"] + seconds}
        sums = 2 ** (self.depth - 1) * sum(columns[1:]) * self.bins
        return {"seconds": seconds, "bytes": 16.0 * trees * (rows * (len(columns) - 1) + sums)}

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The objective.

        Raises:
            ConfigError: labels are numbers, which have no bound that noise could cover.
        """
        if self.security == "noise" and objective.name == SQUARED:
            raise ConfigError(
                "security='noise' with labels that are numbers",
                where="FedXGBoost",
                remedy="use security='product', or labels of two or more classes",
            )
        return objective

    async def meet_hosts(
        self, rows: GuestRows, known: Mapping[str, HostColumns], peers: Peers, secret: Secret, kept: Any, spend: Spend | None
    ) -> tuple[Mapping[str, GuestSums], Any]:  # fmt: skip
        """Prepare products with each host; or add noise to the labels, once."""
        if kept is None:
            await peers.broadcast({"security": self.security, "outputs": rows.objective.outputs}, list(known))
        if self.security == "noise":
            return dict.fromkeys(known, PlainSums()), kept or {"labels": self._hide_labels(rows, secret, spend)}
        channel, found = peers.channel(_PRODUCTS), {}
        for host, columns in known.items():  # seeds are drawn anew when a training goes on: nothing of them is kept
            found[host] = await ProductGuest.begin(columns, len(rows.x), secret, channel, host)
        return found, []

    async def meet_guest(self, own: OwnedColumns, told: Any, peers: Peers, guest: str, secret: Secret) -> HostSums:
        """Prepare products with the guest."""
        if self.security == "noise":
            return PlainSums()
        return await ProductHost.begin(own, secret, peers.channel(_PRODUCTS), guest)

    async def grow(self, owners: ColumnOwners, boosting: Boosting, rows: GuestRows, kept: Any) -> None:
        """Grow the trees of a round; with noise, splits follow the labels with noise, and the guest's leaves the true ones."""
        if kept is None or self.security == "product":
            await super().grow(owners, boosting, rows, kept)
            return
        labels, units, objective = np.asarray(kept["labels"]), units_of(rows), rows.objective
        if boosting.seen is None:
            boosting.seen = _first_margins(objective, labels)
        h = objective.gradients(boosting.seen, rows.targets)[1]  # of the margins alone
        pairs = _round_pairs(objective.predict(boosting.seen).astype(np.float64) - labels, h, units)
        true = np.stack(objective.gradients(boosting.margin, rows.targets), axis=-1).astype(np.float64)
        made = []
        for group in range(objective.outputs):
            growth = await grow_tree(owners, pairs[:, group], group, self.limits, units)
            leaves = np.zeros(len(growth.feature), np.float32)
            for node, mine in owners.own.at.items():
                leaves[node] = self.rate * self.limits.weight(true[mine, group].sum(axis=0))
            boosting.trees.add(growth, owners.owner_of, owners.own, boosting.splits, leaves)
            made.append((group, growth.value(), leaves, dict(owners.own.at)))
        await owners.end()
        for group, noisy, leaves, at in made:
            for node, mine in at.items():
                boosting.seen[mine, group] += noisy[node]
                boosting.margin[mine, group] += leaves[node]

    def _hide_labels(self, rows: GuestRows, secret: Secret, spend: Spend | None) -> NDArray[np.float64]:
        """Labels as vectors with a 1 at the class, ``(rows, outputs)``, with noise; the ledger has the release before this returns."""
        objective = rows.objective
        hot = np.zeros((len(rows.x), objective.outputs))
        if objective.name == SOFTMAX:
            hot[np.arange(len(hot)), rows.targets.astype(np.int64)] = 1
        else:
            hot[:, 0] = rows.targets
        apart = math.sqrt(2) if objective.name == SOFTMAX else 1.0  # two labels
        sigma = exact_sigma(self.epsilon or 0.0, self.delta, 1, apart)
        lattice = GaussianLattice.covering(sigma, apart, objective.outputs)
        noisy = lattice.add(hot, words_of(secret.generator()))
        if spend is None:
            raise PolicyError(
                "noise without a ledger", where="FedXGBoost", remedy="train it as the model of Vertical, which books it"
            )
        mark = hashlib.sha256(noisy.tobytes()).hexdigest()[:16]
        spend(Gaussian(unit="example", scope=f"labels#{mark}", noise_multiplier=sigma / apart))
        return noisy


def _first_margins(objective: TreeLoss, labels: NDArray[np.float64]) -> NDArray[np.float32]:
    """The margins before the first tree, from labels with noise."""
    shares = np.clip(labels.mean(axis=0), 0.01, 0.99)
    return np.tile(objective.first_guess(shares, 1).astype(np.float32), (len(labels), 1))


def _round_pairs(g: NDArray[np.float64], h: NDArray[np.float32], units: GradientUnits) -> NDArray[np.int64]:
    """Gradients with noise, and second derivatives, as whole numbers, ``(rows, outputs, 2)``; rounding what has its noise costs no privacy."""
    most = 2.0 ** (24 + _COARSE) - 2.0**_COARSE
    coarse = np.rint(g / units.g / 2.0**_COARSE) * 2.0**_COARSE
    return np.stack([np.clip(coarse, -most, most), np.rint(h / units.h)], axis=-1).astype(np.int64)
