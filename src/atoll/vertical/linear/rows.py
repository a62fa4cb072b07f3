"""The rows of a linear model in the clear: hosts tell the guest their margins, the guest tells them derivatives.

Frames on the session, ``(rows, outputs)`` of float64 each, unless it says otherwise:

* host to guest: its margins ``x w`` (for a gradient), ``x p`` (for a product with H);
* guest to host: first and second derivatives by the margins of all parties, or H's answer;
* ``(1, numbers)``: a party's terms of sums, and the sums; ``(1, 1)``: the length of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import require
from .families import LinearLoss
from .solver import EXACT, OwnBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel

__all__ = ["GuestTotals", "HostTotals", "PlainGuest", "PlainHost", "read_numbers"]


def read_numbers(message: Any, shape: tuple[int, ...], name: str) -> NDArray[np.float64]:
    """A peer's numbers.

    Raises:
        MessageError: they have another form, or one is no number.
    """
    good = isinstance(message, np.ndarray) and message.dtype == np.float64 and message.shape == shape
    require(good, f"no numbers of shape {shape} from {name!r}", "VerticalLinear")
    made = np.asarray(message)
    require(bool(np.isfinite(made).all()), f"NaN or infinity from {name!r}", "VerticalLinear")
    return made


class GuestTotals:
    """Adds a few numbers of all parties up, at the guest.

    Args:
        peers: the session; not used without hosts.
        hosts: the hosts' roles.
    """

    def __init__(self, peers: PeerChannel | None, hosts: Sequence[str]) -> None:
        self.peers: Any = peers
        self.hosts = list(hosts)

    async def total(self, *values: float) -> list[float]:
        """The sums, of the guest's numbers and then the hosts' in their order, so that all parties have the same to the bit."""
        made = np.array([values], np.float64)
        for host in self.hosts:
            made = made + read_numbers(await self.peers.recv(host), made.shape, host)
        if self.hosts:
            await self.peers.broadcast(made, self.hosts)
        return [float(one) for one in made[0]]


class HostTotals:
    """The same at a host.

    Args:
        peers: the session.
        guest: the guest's role.
    """

    def __init__(self, peers: PeerChannel, guest: str) -> None:
        self.peers, self.guest = peers, guest

    async def total(self, *values: float) -> list[float]:
        """The sums."""
        await self.peers.send(self.guest, np.array([values], np.float64))
        made = read_numbers(await self.peers.recv(self.guest), (1, len(values)), self.guest)
        return [float(one) for one in made[0]]


class PlainGuest(GuestTotals):
    """The guest's rows: margins of all parties, derivatives of the loss.

    Args:
        block: its columns.
        loss: the loss.
        outputs: margins of a row.
        peers: the session; not used without hosts.
        hosts: the hosts' roles.
    """

    quadratic = False
    exact = EXACT

    def __init__(
        self, block: OwnBlock, loss: LinearLoss, outputs: int, peers: PeerChannel | None, hosts: Sequence[str]
    ) -> None:
        super().__init__(peers, hosts)
        self.block, self.loss, self.outputs = block, loss, outputs
        self.margins = self.along = np.zeros((len(block.x), outputs))

    async def _gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        made = self.block.x @ own
        for host in self.hosts:
            made = made + read_numbers(await self.peers.recv(host), made.shape, host)
        return np.asarray(made)

    async def find_gradient(self, w: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `JointRows.find_gradient`."""
        self.margins = await self._gather(w)
        r, c = self.loss.residuals(self.margins), self.loss.curvatures(self.margins)
        if self.hosts:
            await self.peers.broadcast(r, self.hosts)
            await self.peers.broadcast(c, self.hosts)
        return self.block.x.T @ r, c

    async def bend(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `JointRows.bend`."""
        bent = self.loss.bend(self.margins, await self._gather(p))
        if self.hosts:
            await self.peers.broadcast(bent, self.hosts)
        return np.asarray(self.block.x.T @ bent)

    async def search(self, p: NDArray[np.float64], slope: float, bow: float, l1: tuple[float, float]) -> float:
        """Halve the step until the loss falls (Armijo), and tell the hosts; see `JointRows.search`."""
        along = await self._gather(p)
        slope, bow, before, after = await self.total(slope, bow, *l1)
        start, falls = self.loss.loss(self.margins), float((self.loss.residuals(self.margins) * along).sum()) + slope
        falls += after - before
        length = 1.0
        while length > 1e-10:
            # The L1 penalty is convex: between the ends it is below their mix.
            rise = self.loss.loss(self.margins + length * along) - start
            rise += length * slope + length**2 * bow / 2 + length * (after - before)
            if rise <= 1e-4 * length * falls + 1e-13 * abs(start):
                break
            length /= 2
        else:
            length = 0.0
        if self.hosts:
            await self.peers.broadcast(np.array([[length]]), self.hosts)
        return length


class PlainHost(HostTotals):
    """A host's rows.

    Args:
        block: its columns.
        outputs: margins of a row.
        peers: the session.
        guest: the guest's role.
    """

    quadratic = False
    exact = EXACT

    def __init__(self, block: OwnBlock, outputs: int, peers: PeerChannel, guest: str) -> None:
        super().__init__(peers, guest)
        self.block, self.shape = block, (len(block.x), outputs)

    async def find_gradient(self, w: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `JointRows.find_gradient`."""
        await self.peers.send(self.guest, self.block.x @ w)
        r = read_numbers(await self.peers.recv(self.guest), self.shape, self.guest)
        c = read_numbers(await self.peers.recv(self.guest), self.shape, self.guest)
        require(bool((c >= 0).all()), f"a negative second derivative from {self.guest!r}", "VerticalLinear")
        return self.block.x.T @ r, c

    async def bend(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `JointRows.bend`."""
        await self.peers.send(self.guest, self.block.x @ p)
        return np.asarray(self.block.x.T @ read_numbers(await self.peers.recv(self.guest), self.shape, self.guest))

    async def search(self, p: NDArray[np.float64], slope: float, bow: float, l1: tuple[float, float]) -> float:
        """See `JointRows.search`."""
        await self.peers.send(self.guest, self.block.x @ p)
        await self.total(slope, bow, *l1)
        [[length]] = read_numbers(await self.peers.recv(self.guest), (1, 1), self.guest)
        require(0 <= length <= 1, f"a step of length {length:g} from {self.guest!r}", "VerticalLinear")
        return float(length)
