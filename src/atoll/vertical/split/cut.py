"""What passes the cut of a split network: embeddings one way, their gradients the other. Frames of peers are checked before they reach a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel

__all__ = ["Cut", "read_frame"]


def read_frame(message: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str, name: str) -> NDArray[Any]:
    """The numbers of a peer's frame.

    Args:
        message: the message.
        shape: the shape that they must have.
        dtype: the type that they must have.
        what: what they are, for the error.
        name: who sent them, for the error.

    Raises:
        MessageError: they are not of this form, or not finite.
    """
    found = message.get("cut") if isinstance(message, Mapping) else None
    good = isinstance(found, np.ndarray) and found.dtype == dtype and found.shape == shape
    require(good, f"no {what} of {name!r} of shape {shape} in {dtype}", "SplitNet")
    values = np.array(found)  # of one's own: a frame is read-only
    require(bool(np.isfinite(values).all()), f"NaN or infinity in the {what} of {name!r}", "SplitNet")
    return values


@dataclass(frozen=True)
class Cut:
    """One party's end of the cut in a training.

    Attributes:
        peers: the session.
        dtype: the type of the numbers.
    """

    peers: PeerChannel
    dtype: np.dtype[Any]

    async def send(self, role: str, step: int, tensor: Any) -> None:
        """Send the numbers of a step."""
        await self.peers.send(role, {"step": step, "cut": tensor.detach().numpy()})

    async def recv(self, role: str, step: int, shape: tuple[int, ...], what: str) -> NDArray[Any]:
        """The numbers of a step.

        Raises:
            MessageError: they are those of another step, of another form, or not finite.
        """
        message = await self.peers.recv(role)
        told = message.get("step") if isinstance(message, Mapping) else None
        require(type(told) is int and told == step, f"{what} of {role!r} for step {told!r} at step {step}", "SplitNet")
        return read_frame(message, shape, self.dtype, what, role)

    async def recv_all(self, roles: Sequence[str], step: int, shape: tuple[int, ...], what: str) -> list[NDArray[Any]]:
        """The numbers of a step of several roles."""
        return [await self.recv(role, step, shape, what) for role in roles]
