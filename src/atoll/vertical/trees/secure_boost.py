"""`SecureBoost`: boosted trees over columns at several owners, those that XGBoost grows on all columns in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.island import Secret
from atoll.core.validation import require_parts
from atoll.secure.encrypted import Paillier

from ..model import GuestRows
from .boosted import BoostedTrees, Spend, units_of
from .boosting import GuestSums, HostColumns, HostSums, PlainSums
from .columns import OwnedColumns
from .sealed import GuestCipher, HostCipher, predict_cost

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers

__all__ = ["SecureBoost"]


@dataclass(frozen=True, kw_only=True)
class SecureBoost(BoostedTrees):
    """Boosted trees over columns at several owners, without loss: XGBoost's trees of all columns in one place.

    Each owner finds XGBoost's cuts of its own columns (``tree_method="hist"``, rows in the common order). The gain of a split is
    ``G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)`` (Chen, Guestrin 2016, equation 7), in single precision where XGBoost rounds it, from exact sums of
    gradients in units of ``2^-24``. Of equal gains the first column's counts, in the order of the tables: the guest's first, then the hosts' in their order.

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
        max_cat_to_onehot: a column with fewer categories splits one off; of others a split parts the categories, in the order of their gradients (`atoll.vertical.trees.categories`).
        security: see above.
        cipher: the encryption of ``paillier``.
        packed: whether a host sends several sums in a ciphertext (Fu et al. 2021, "VF2Boost", section 5.2); without, each has one of its own.
        batch: rows whose gradients travel in one message, so that hosts check them and add them up while the guest encrypts the next ones (VF2Boost, section 4.1); 0 sends all at once.
        optimistic: whether hosts go on with the splits that the guest alone would make while their sums are opened and compared, and take back those that a host's column beats
            (VF2Boost, section 4.2). A host then sees where rows go at these too, and the guest sums of their leaves.
        short_exponents: whether noise has exponents of 448 bits: encryption takes less than half the time, under a further assumption, see `KeyOwner`.
    """

    security: Literal["paillier", "none"] = "paillier"
    cipher: Paillier = field(default_factory=Paillier)
    packed: bool = True
    batch: int = 0
    optimistic: bool = False
    short_exponents: bool = False

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        super().__post_init__()
        bounds = (
            ("batch", self.batch >= 0, "use a number of rows, or 0 for all at once"),
            ("security", self.security in ("paillier", "none"), "use 'paillier' or 'none'"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="SecureBoost", remedy=remedy)
        if self.security == "none" and (self.short_exponents or self.cipher != Paillier()):
            name = "short_exponents" if self.short_exponents else "cipher"
            raise CompositionError(f"{name} with security='none'", where="SecureBoost", remedy=f"leave {name} out")

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
                "its own splits: column, value or categories, and which leaf",
            ],
            "guest": [
                "how many columns each host has, how many bins each column, which bin is the fullest, and which bins are categories of one column",
                "sums of gradients by leaf, column and bin of each host, in the order of the bins"
                + (f", each of at least {self.min_bin_rows} training rows" if self.min_bin_rows > 1 else "")
                + (", and those of leaves that are tried and taken back" if self.optimistic else ""),
                "which rows go left at each of a host's splits, and of categories which ones, by number; but neither its columns nor its values",
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

    @property
    def streaming(self) -> tuple[int, bool]:
        """As set."""
        return self.batch, self.optimistic

    async def meet_hosts(
        self, rows: GuestRows, known: Mapping[str, HostColumns], peers: Peers, secret: Secret, kept: Any, spend: Spend | None
    ) -> tuple[Mapping[str, GuestSums], Any]:  # fmt: skip
        """One key for all hosts, or none."""
        del spend
        half: GuestSums = PlainSums()
        public: dict[str, Any] = {"security": "none"}
        keys: Any = []
        if self.security == "paillier":
            sealed = GuestCipher.of(
                self.cipher, units_of(rows), len(rows.x), secret, kept, self.short_exponents, self.packed
            )
            half, public, keys = sealed, sealed.public, sealed.owner.keys
        if kept is None:
            await peers.broadcast({**public, "outputs": rows.objective.outputs}, list(known))
        return dict.fromkeys(known, half), keys

    async def meet_guest(self, own: OwnedColumns, told: Any, peers: Peers, guest: str, secret: Secret) -> HostSums:
        """A host's half of the sums, as it was told."""
        if self.security == "none":
            return PlainSums()
        return HostCipher.of(self.cipher, told, own.rows, secret, self.packed)
