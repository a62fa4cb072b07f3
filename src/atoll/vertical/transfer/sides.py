"""The two sides of `SFTL`: what each tells the other, with which numbers of its own it multiplies what it hears, and what of its gradient it knows alone.

Of n shared rows, columns ``x`` of one side with a 1 behind them, ``J = x (1 - u^2)``, the share ``l`` of the shared rows with labels and their number ``L``:

* the host's gradient by W, beside what it knows alone, is ``sum_i J_i c_i / n + sum_e M_e (sum_L J_i u_ie) / (4 L)``, with the guest's ``c_i = -(n / 2L) l_i sum_k y_ik Phi_k - 2 align u_i`` and
  ``M = sum_k Phi_k Phi_k^T``;
* the guest's is ``sum_k a_k g_k - (2 align / n) sum_i J_i u_i'``, where ``a_k`` is the mean of ``y_ik J_i`` over its labelled rows and ``g_k = -sum_L y_ik u_i' / 2L + M' Phi_k / 4``, with the
  host's ``u'`` and ``M'``, the mean of ``u' u'^T`` over L.

Both are products of one side's numbers with the other's, unit by unit of the common space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.message import Bits
from atoll.trees.objectives import LOGISTIC

from ..model import GuestRows, require
from .representation import Descent, NetSettings, Representation, begin_net

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CURVE", "SLOPE", "SideSettings", "SourceSide", "TargetSide", "signs_of"]

Numbers = Any
"""An array of float64 numbers."""
SLOPE, CURVE = 0.5, 0.25
"""Taylor's series of ``log(1 + e^-ys)`` at 0 is ``log 2 - ys/2 + s^2/8``, whose derivative by s is ``-y/2 + s/4``."""


class SideSettings(NetSettings, Protocol):
    """What the sides read of the model's settings; see `SFTL`."""

    @property
    def align(self) -> float: ...  # noqa: D102
    @property
    def source(self) -> float: ...  # noqa: D102
    @property
    def restore(self) -> float: ...  # noqa: D102
    @property
    def penalty(self) -> float: ...  # noqa: D102


@dataclass
class _Side:
    """What both sides have.

    Attributes:
        model: the settings.
        net: this side's network.
        descent: its gradient descent.
        x: all its rows, scaled, with a 1 behind them, the shared ones first.
        shared: how many are.
    """

    model: SideSettings
    net: Representation
    descent: Descent
    x: Numbers
    shared: int

    @classmethod
    def _begin(
        cls, model: SideSettings, x: NDArray[Any], others: NDArray[Any], state: Any, party: int
    ) -> dict[str, Any]:
        """The fields, from rows and from what `packed` kept."""
        rows = np.concatenate([x, others])
        net, descent = begin_net(model, rows, party, state)
        return {"model": model, "net": net, "descent": descent, "x": net.read(rows), "shared": len(x)}

    def packed(self) -> dict[str, Any]:
        """What a resumed side needs."""
        return {"net": self.net.packed(), "speed": self.descent.speed}

    def represent(self) -> Numbers:
        """``u`` of all rows."""
        return self.net.represent(self.x)

    def _by_unit(self, u: Numbers) -> Numbers:
        """``J`` of the shared rows, ``(width, shared, columns + 1)``."""
        n = self.shared
        return (1 - u[:n] ** 2).T[:, :, None] * self.x[None, :n]

    def _regular(self, u: Numbers, towards: Numbers) -> tuple[Numbers, Numbers]:
        """The gradients by W and V of what needs no other party, with ``towards``, that by u, added."""
        encode, decode = self.net.restore_gradients(self.x, u)
        own = self.model.restore * encode + self.model.penalty * self.net.encode
        return own + self.net.backward(self.x, u, towards), self.model.restore * decode

    def _aligned(self, u: Numbers) -> Numbers:
        """The gradient by u of this side's half of the alignment, 0 for rows that are not shared."""
        towards = np.zeros_like(u)
        towards[: self.shared] = 2 * self.model.align * u[: self.shared] / max(1, self.shared)
        return towards


def signs_of(rows: GuestRows) -> Numbers:
    """1 for a row's class, -1 for the others, 0 for a row without a label, ``(rows, outputs)``."""
    known = ~np.isnan(rows.targets)
    codes = np.where(known, rows.targets, 0).astype(np.int64)[:, None]
    signs = codes if rows.objective.name == LOGISTIC else codes == np.arange(rows.objective.outputs)
    return np.where(known[:, None], 2.0 * signs - 1, 0.0)


@dataclass
class SourceSide(_Side):
    """The side with the labels.

    Attributes:
        y: 1 for a row's class, -1 for the others, 0 for a row without a label, ``(rows, outputs)``.
    """

    y: Numbers

    @classmethod
    def of(cls, model: SideSettings, rows: GuestRows, others: GuestRows | None = None, state: Any = None) -> SourceSide:
        """The side of the guest's rows: the shared ones, and others of its own. A label NaN is none."""
        more = GuestRows(rows.x[:0], rows.targets[:0], rows.objective) if others is None else others
        targets = np.concatenate([rows.targets, more.targets])
        return cls(
            **cls._begin(model, rows.x, more.x, state, 0), y=signs_of(GuestRows(more.x, targets, rows.objective))
        )

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which of all rows have a label."""
        return np.asarray(self.y[:, 0] != 0)

    def directions(self, u: Numbers) -> Numbers:
        """``Phi``, ``(outputs, width)``."""
        return self.y.T @ u / max(1, int(self.labelled.sum()))

    def tell(self) -> Numbers:
        """``c`` and ``M`` for the host, ``(width, shared + width)``."""
        u, n = self.represent(), self.shared
        phi, y = self.directions(u), self.y[:n]
        pull = -SLOPE * n / max(1, int(self.labelled[:n].sum())) * (y @ phi) - 2 * self.model.align * u[:n]
        return np.concatenate([pull.T, phi.T @ phi], axis=1)

    def weights(self) -> Numbers:
        """This side's factors, ``(width, shared + width, columns + 1)``."""
        u, n = self.represent(), self.shared
        phi, y = self.directions(u), self.y[:n]
        by_unit, few = self._by_unit(u), max(1, int(self.labelled[:n].sum()))
        moved = np.stack(
            [self.net.backward(self.x, u, np.repeat(signs[:, None], u.shape[1], axis=1)) for signs in self.y.T]
        )
        moved /= max(1, int(self.labelled.sum()))  # a_k, (outputs, columns + 1, width)
        rows = -SLOPE / few * np.einsum("jk,kpd->djp", y, moved) - 2 * self.model.align / max(1, n) * by_unit
        crossed = CURVE * np.einsum("ke,kpd->dep", phi, moved)
        return np.concatenate([rows, crossed if self.labelled[:n].any() else 0 * crossed], axis=1)

    def descend(self, product: Numbers | None = None) -> None:
        """Take a step, with the product that the host's numbers gave, ``(width, columns + 1)``; ``None`` without a host."""
        u = self.represent()
        towards = self.model.source * self._own_scores(u) + self._aligned(u)
        encode, decode = self._regular(u, towards)
        self.descent.step(self.net, encode if product is None else encode + product.T, decode)

    def _own_scores(self, u: Numbers) -> Numbers:
        """The gradient by u of the mean loss of this side's own rows, through their scores and through ``Phi``."""
        phi, few = self.directions(u), max(1, int(self.labelled.sum()))
        by_score = (-SLOPE * self.y + CURVE * (u @ phi.T) * self.labelled[:, None]) / few
        return by_score @ phi + self.y @ (by_score.T @ u) / few


@dataclass
class TargetSide(_Side):
    """The side without labels.

    Attributes:
        labelled: which shared rows have a label at the source.
        outputs: scores of a row.
    """

    labelled: NDArray[np.bool_]
    outputs: int

    @classmethod
    def of(
        cls, model: SideSettings, x: NDArray[Any], others: NDArray[Any] | None, told: Any, guest: str, state: Any = None
    ) -> TargetSide:
        """The side of a host's rows, after what the guest told at the start.

        Raises:
            MessageError: it told something else.
        """
        labelled = told.get("labelled") if isinstance(told, Mapping) else None
        good = isinstance(labelled, Bits) and labelled.shape == (len(x),) and _is_count(told.get("outputs"))
        require(good, f"{guest!r} does not say which of {len(x)} rows have labels", "SFTL")
        has = np.asarray(labelled.unpack(), np.bool_)  # type: ignore[union-attr]
        more = x[:0] if others is None else others
        return cls(**cls._begin(model, x, more, state, 1), labelled=has, outputs=int(told["outputs"]))

    @property
    def bound(self) -> float:
        """The largest number that a guest which follows the protocol tells: see `SourceSide.tell`."""
        few = max(1, int(self.labelled.sum()))
        return max(SLOPE * self.shared / few * self.outputs + 2 * self.model.align, float(self.outputs))

    def tell(self) -> Numbers:
        """``u'`` and ``M'`` for the guest, ``(width, shared + width)``."""
        u = self.represent()[: self.shared]
        with_labels = u[self.labelled]
        return np.concatenate([u.T, with_labels.T @ with_labels / max(1, len(with_labels))], axis=1)

    def weights(self) -> Numbers:
        """This side's factors, ``(width, shared + width, columns + 1)``."""
        u = self.represent()
        by_unit, few = self._by_unit(u), max(1, int(self.labelled.sum()))
        crossed = CURVE / few * np.einsum("dip,ie->dep", by_unit[:, self.labelled], u[: self.shared][self.labelled])
        return np.concatenate([by_unit / max(1, self.shared), crossed], axis=1)

    def descend(self, product: Numbers) -> None:
        """Take a step, with the product that the guest's numbers gave, ``(width, columns + 1)``."""
        u = self.represent()
        encode, decode = self._regular(u, self._aligned(u))
        self.descent.step(self.net, encode + product.T, decode)


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1 << 20
