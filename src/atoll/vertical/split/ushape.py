"""The U-shaped split: the labels stay at the guest with the last layer, and the first host has the top's hidden layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import GuestRows, Part, Save
from .attacks import LabelLeaks
from .cut import Cut, read_frame
from .networks import apply_layers, few_threads, load_torch
from .owners import LabelSide, SplitPlan, apply_head, embed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Secret


__all__ = ["TrunkHost", "predict_labels", "predict_trunk", "train_labels"]


async def train_labels(
    model: SplitPlan,
    rows: GuestRows,
    peers: Peers,
    hosts: Sequence[str],
    *,
    secret: Secret,
    state: Any = None,
    save: Save | None = None,
) -> Part:
    """The guest's role: send embeddings to the trunk, take what it makes of all, and send back gradients of that.

    Raises:
        MessageError: the host with the trunk sent something of another form.
    """
    torch, top = load_torch(), hosts[0]
    at_guest = LabelSide.of(model, rows, len(hosts) + 1, state, with_trunk=False)
    leaks = LabelLeaks(model.audit, 1, len(rows.x), model.top[-1], state and state["leaks"])
    cut, batches = model.cut(peers), model.batches(len(rows.x))
    with few_threads(model.bottom(rows.x.shape[1]).multiplications * model.batch):
        for step, at in batches.from_step(0 if state is None else int(state["done"])):
            embedding = at_guest.bottom(at_guest.x[at])
            sent = await cut.send(top, step, embedding, "up")
            found = torch.from_numpy(await cut.recv(top, step, (len(at), model.top[-1]), "features")).requires_grad_()
            at_guest.loss([found], at).backward()
            shown = model.hide_labels(found.grad, secret)
            if leaks.attacks:
                leaks.note(0, found, shown, rows.targets[at], at)
            await cut.send(top, step, shown, "down")
            gradients = await cut.recv(top, step, (len(at), model.width), "gradients")
            gradients += model.correction / len(at) * (embedding.detach().numpy() - sent)
            embedding.backward(torch.from_numpy(gradients))
            at_guest.step()
            if save is not None and model.is_checkpoint(batches, step + 1):
                await save({"done": step + 1, "leaks": leaks.state(), **at_guest.state()})
    told = leaks.result(rows.targets)
    return {**at_guest.packed(), "width": model.width, "hosts": len(hosts), **({"leaks": told} if told else {})}


class TrunkHost:
    """The trunk in training, at the first host.

    Args:
        model: the model.
        cut: this host's end of the cut.
        guest: the guest's role.
        hosts: the other hosts' roles, in their order.
        state: of the segment, from a checkpoint.
    """

    def __init__(self, model: SplitPlan, cut: Cut, guest: str, hosts: Sequence[str], state: Any = None) -> None:
        self._cut, self._guest, self._hosts = cut, guest, list(hosts)
        self._width, self._features = model.width, model.top[-1]
        self.segment = model.segment(model.tops(2 + len(self._hosts), 1)[0], "trunk")
        if state is not None:
            self.segment.restore(state)

    async def join_embeddings(self, step: int, embedding: Any) -> NDArray[Any]:
        """Take a step with this host's own embedding: send the guest what the trunk makes of all, and all their gradients; return those of the own one.

        Raises:
            MessageError: a party sent something of another form.
        """
        torch, shape = load_torch(), (len(embedding), self._width)
        others = [self._guest, *self._hosts]
        got = [torch.from_numpy(one) for one in await self._cut.recv_all(others, step, shape, "embeddings")]
        every = [one.requires_grad_() for one in (got[0], embedding.detach().clone(), *got[1:])]
        found = self.segment(torch.cat(every, 1))
        await self._cut.send(self._guest, step, found, "up")
        gradients = await self._cut.recv(self._guest, step, tuple(found.shape), "gradients")
        found.backward(torch.from_numpy(gradients))
        for name, one in zip(others, (every[0], *every[2:]), strict=True):
            await self._cut.send(name, step, one.grad, "down")
        self.segment.step()
        return np.asarray(every[1].grad.numpy())


async def predict_labels(part: Part, x: NDArray[Any], peers: PeerChannel, top: str) -> NDArray[Any]:
    """The guest's role when the parties predict.

    Raises:
        MessageError: the host with the trunk sent something of another form.
    """
    await peers.send(top, {"cut": embed(part, x)})
    weight = np.asarray(part["head"]["weights"][0])
    found = read_frame(await peers.recv(top), (len(x), weight.shape[1]), weight.dtype, "features", top)
    return apply_head(part, found)


async def predict_trunk(part: Part, x: NDArray[Any], peers: PeerChannel, guest: str) -> None:
    """The role of the host with the trunk when the parties predict.

    Raises:
        MessageError: a party sent something of another form.
    """
    own, got = embed(part, x), []
    for name in (guest, *part["hosts"]):
        message = await peers.recv(str(name))
        got.append(read_frame(message, (len(x), int(part["width"])), own.dtype, "embeddings", str(name)))
    await peers.send(guest, {"cut": apply_layers(part["trunk"], np.concatenate([got[0], own, *got[1:]], axis=1))})
