"""What passes the cut of a split network: embeddings one way, their gradients the other. Frames of peers are checked before they reach a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, CompositionError, MessageError
from atoll.core.facets import facet
from atoll.core.requests.stage import Fitting, Guarding, Stage, StageContext, WithMemory

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel

__all__ = ["Cut", "CutStages", "read_frame", "require_cut_stages"]


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


def require_cut_stages(stages: Sequence[Stage], where: str) -> None:
    """Refuse stages that cannot act on embeddings or gradients.

    Raises:
        CompositionError: one acts on sums, remembers its last reply, of which the cut has one a step and host, or draws noise that a ledger books.
    """
    for stage in stages:
        if stage.on == "summand":
            raise CompositionError(
                f"{type(stage).__name__} acts on sums, and at the cut nothing is added up",
                where=where,
                remedy="use a stage on values, such as TopK, QSGD or ProductQuantizer",
            )
        if facet(stage, WithMemory).remembers:
            raise CompositionError(
                f"{type(stage).__name__} remembers a client's last reply",
                where=where,
                remedy="use a stage without memory, such as TopK, QSGD or ProductQuantizer",
            )
        if facet(stage, Guarding).secret or facet(stage, Guarding).guards:
            raise CompositionError(
                f"{type(stage).__name__} promises privacy for one reply, and the cut has one a step",
                where=where,
                remedy="use defence=[MaxNorm()] or IsotropicNoise, which promise nothing",
            )


@dataclass(frozen=True)
class CutStages:
    """Stages on one way over the cut: encoded by the sender, decoded by the recipient, step by step.

    A stage whose parameters are fitted (a codebook of `ProductQuantizer`) is fitted to what the step sends, and its parameters travel with it: FedLite, Wang et al. 2022.

    Attributes:
        stages: in order.
        rng: a stream that all parties share.
    """

    stages: tuple[Stage, ...]
    rng: Rng

    def encode(self, values: NDArray[Any], step: int) -> dict[str, Any]:
        """The message of a step's numbers."""
        found: Any = values
        fitted: list[Any] = []
        for i, stage in enumerate(self.stages):
            draw = self.rng.child(step, i)
            public = self._public(stage, i)
            if facet(stage, Fitting).fits:
                public = {**facet(stage, Fitting).fit(found, draw.child("fit")), "version": 1}
                fitted.append(public)
            found = stage.encode(found, StageContext.of(draw, public))
        return {"encoded": found, "fitted": fitted}

    def decode(self, message: Any, like: NDArray[Any], what: str, name: str) -> dict[str, Any]:
        """The numbers of a message, as a frame; ``like`` has their shape and type.

        Raises:
            MessageError: it is not of these stages.
        """
        broken = f"no {what} of {name!r} under {', '.join(type(one).__name__ for one in self.stages)}"
        require(isinstance(message, Mapping) and {"encoded", "fitted"} <= set(message), broken, "SplitNet")
        found, fitted = message["encoded"], list(message["fitted"])
        expected = self.encode(like, 0)
        # A template of another shape would make the decoder build what no one can hold.
        require(_templates(found) == _templates(expected["encoded"]), broken, "SplitNet")
        require(len(fitted) == len(expected["fitted"]), broken, "SplitNet")
        try:
            for i, stage in reversed(list(enumerate(self.stages))):
                public = fitted.pop() if facet(stage, Fitting).fits else self._public(stage, i)
                found = facet(stage, WithMemory).decode_one(found, public, None)
            return {"cut": np.asarray(found, like.dtype)}
        except (AtollError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise MessageError(broken, where="SplitNet", remedy="let all parties use the same stages") from error

    def _public(self, stage: Stage, i: int) -> Any:
        return stage.public(self.rng.child("public", i))


def _templates(encoded: Any, below: bool = False) -> list[Any]:
    """Shapes of the templates in an encoding."""
    if isinstance(encoded, Mapping):
        return [one for name, each in sorted(encoded.items()) for one in _templates(each, below or name == "like")]
    return [np.shape(encoded)] if below else []


@dataclass(frozen=True)
class Cut:
    """One party's end of the cut in a training.

    Attributes:
        peers: the session.
        dtype: the type of the numbers.
        ways: stages of what goes towards the top (``up``) and back (``down``).
    """

    peers: PeerChannel
    dtype: np.dtype[Any]
    ways: Mapping[str, CutStages]

    async def send(self, role: str, step: int, tensor: Any, way: str) -> Any:
        """Send the numbers of a step; return them as the other role reads them."""
        values, stages = tensor.detach().numpy(), self.ways[way]
        if not stages.stages:
            await self.peers.send(role, {"step": step, "cut": values})
            return values
        message = stages.encode(values, step)
        await self.peers.send(role, {"step": step, **message})
        return stages.decode(message, np.zeros_like(values), "numbers", "me")["cut"]

    async def recv(self, role: str, step: int, shape: tuple[int, ...], what: str) -> NDArray[Any]:
        """The numbers of a step.

        Raises:
            MessageError: they are those of another step, of another form, or not finite.
        """
        message = await self.peers.recv(role)
        told = message.get("step") if isinstance(message, Mapping) else None
        require(type(told) is int and told == step, f"{what} of {role!r} for step {told!r} at step {step}", "SplitNet")
        stages = self.ways["down" if what == "gradients" else "up"]
        if stages.stages:
            message = stages.decode(message, np.zeros(shape, self.dtype), what, role)
        return read_frame(message, shape, self.dtype, what, role)

    async def recv_all(self, roles: Sequence[str], step: int, shape: tuple[int, ...], what: str) -> list[NDArray[Any]]:
        """The numbers of a step of several roles."""
        return [await self.recv(role, step, shape, what) for role in roles]
