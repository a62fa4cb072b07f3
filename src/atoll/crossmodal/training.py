"""What a party trains in a round: its own network along plain gradients, the shared one along clipped and noisy gradients of single examples. Needs the extra ``torch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from atoll.learn.local.examples import Clipping
from atoll.torch.own_state import seed_generators

from .layers import CodedRows, Fusion, PhoneNetwork, Scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.local.examples import StepSecrets

    from .networks import OwnNetwork
    from .settings import CrossmodalSettings

__all__ = ["SideNetworks"]

Arrays = dict[str, "NDArray[Any]"]


class SideNetworks:
    """The networks of one party, with their weights.

    Args:
        job: the settings.
        own: the party's own network.
        inputs: words of its vocabulary, or the width of its frames.
        words: whether it reads words.
        classes: number of classes.
        phones: number of phones.
        table: the acoustic table, ``(phones + 1, width)``.
        seeds: of the shared networks, the same at all parties; and of the own one.
    """

    def __init__(
        self, job: CrossmodalSettings, own: OwnNetwork, inputs: int, *, words: bool, classes: int, phones: int, table: NDArray[np.float32], seeds: tuple[int, int]
    ) -> None:  # fmt: skip
        with seed_generators(seeds[0]):
            self.phones = PhoneNetwork(phones, classes, table.shape[1], job.width, job.hidden, job.span)
            self.fusion = Fusion(classes)
        with seed_generators(seeds[1]):
            self.own = own.build(inputs, classes, words=words)
        self.table = torch.from_numpy(np.ascontiguousarray(table))
        self.job = job

    # ------------------------------------------------------------------ weights

    @property
    def shared(self) -> dict[str, nn.Parameter]:
        """The parameters that travel, by name."""
        found = {f"phones.{name}": value for name, value in self.phones.named_parameters()}
        if self.job.share_fusion:
            found |= {f"fusion.{name}": value for name, value in self.fusion.named_parameters()}
        return found

    def pack_shared(self) -> Arrays:
        """Copies of what travels."""
        return {name: value.detach().numpy().copy() for name, value in self.shared.items()}

    def load_shared(self, values: Mapping[str, Any]) -> None:
        """Take values of what travels."""
        with torch.no_grad():
            for name, value in self.shared.items():
                value.copy_(torch.from_numpy(np.array(values[name], dtype=np.float32)))

    def pack_own(self) -> Arrays:
        """Copies of what stays, buffers included."""
        found = {f"own.{name}": value for name, value in self.own.state_dict().items()}
        found |= {f"fusion.{name}": value for name, value in self.fusion.state_dict().items()}
        return {name: value.detach().numpy().copy() for name, value in found.items()}

    def load_own(self, values: Mapping[str, Any]) -> None:
        """Take values of what stays."""
        for prefix, module in (("own.", self.own), ("fusion.", self.fusion)):
            part = {n.removeprefix(prefix): torch.from_numpy(np.array(v)) for n, v in values.items() if n.startswith(prefix)}  # fmt: skip
            module.load_state_dict(part)

    def fit_scales(self, rows: CodedRows) -> None:
        """Let layers that read frames take the units of these rows."""
        for layer in self.own.modules():
            if isinstance(layer, Scaled):
                layer.fit([x[:n] for x, n in zip(rows.inputs.numpy(), rows.lengths.tolist(), strict=True)])

    # ------------------------------------------------------------------ steps

    def train_own(self, rows: CodedRows, batches: list[NDArray[Any]], seed: int) -> None:
        """Train the own network alone: what a side can do without the other."""
        mover = self._mover(self.own.parameters())
        self.own.train()
        with seed_generators(seed):
            for at in batches:
                if len(at):
                    part = rows.take(at)
                    mover.zero_grad()
                    _walk_back(nn.functional.cross_entropy(self.own(part.inputs, part.lengths), part.labels))
                    mover.step()

    @property
    def _stays(self) -> list[nn.Parameter]:
        return [*self.own.parameters(), *([] if self.job.share_fusion else self.fusion.parameters())]

    def mover(self) -> torch.optim.Optimizer:
        """What moves the weights that stay, for several calls of `train`."""
        return self._mover(self._stays)

    def _mover(self, values: Any) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.job.optimizer == "adam" else torch.optim.SGD
        return kind(values, lr=self.job.lr)

    def train(
        self, rows: CodedRows, batches: list[NDArray[Any]], noise: StepSecrets | None, seed: int, *, mover: torch.optim.Optimizer | None = None
    ) -> None:  # fmt: skip
        """Make the steps of a round, from one forward pass each: plain gradients for what stays, bounded and noisy ones for what is shared."""
        mover = mover or self.mover()
        for module in (self.own, self.phones, self.fusion):
            module.train()
        with seed_generators(seed):
            for at in batches:
                part = rows.take(at)
                mover.zero_grad()
                if self.job.epsilon is None:
                    self._plain_step(part)
                else:
                    self._private_step(part, noise)
                mover.step()

    def _plain_step(self, part: CodedRows) -> None:
        """One backward pass for all networks, without bound or noise."""
        if not len(part):
            return
        told = self.phones(part.phones, self.table)
        fused = self.fusion(self.own(part.inputs, part.lengths), told if self.job.fused else told.detach())
        loss = nn.functional.cross_entropy(fused, part.labels)
        if not self.job.fused:
            loss = loss + nn.functional.cross_entropy(told, part.labels)
        shared = self.shared
        for value in shared.values():
            value.grad = None
        _walk_back(loss)
        with torch.no_grad():
            for value in shared.values():
                if value.grad is not None:
                    value.sub_(self.job.shared_lr * value.grad)

    def _private_step(self, part: CodedRows, noise: StepSecrets | None) -> None:
        """A noisy sum of bounded gradients for what is shared; an empty mini-batch releases noise alone."""
        total = {name: torch.zeros_like(value) for name, value in self.shared.items()}
        if len(part):
            own = self.own(part.inputs, part.lengths)
            told = self.phones(part.phones, self.table).detach()
            total = self.bounded_sum(part, own.detach())
            fused = self.fusion(own, told)
            loss, stays = nn.functional.cross_entropy(fused, part.labels), self._stays
            for value, slope in zip(stays, torch.autograd.grad(loss, stays, allow_unused=True), strict=True):
                value.grad = slope
        with torch.no_grad():
            for name, value in self.shared.items():
                moved = total[name] / self.job.batch
                if noise is not None:
                    moved = moved + torch.from_numpy(noise.normal(moved.numel())).reshape(moved.shape)
                value.sub_(self.job.shared_lr * moved)

    def bounded_sum(self, part: CodedRows, own: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``sum_i g_i min(1, C / ||g_i||)`` over examples; one whose gradient is not finite counts as zero."""
        shared = {name: value.detach() for name, value in self.shared.items()}
        fixed = {f"fusion.{name}": value.detach() for name, value in self.fusion.named_parameters()} | shared

        def loss(values: dict[str, torch.Tensor], phones: torch.Tensor, label: torch.Tensor, seen: torch.Tensor) -> Any:
            whole = fixed | values
            told = functional_call(self.phones, _under(whole, "phones."), (phones[None], self.table))
            if self.job.fused:
                told = functional_call(self.fusion, _under(whole, "fusion."), (seen[None], told))
            return nn.functional.cross_entropy(told, label[None])

        rows, _ = vmap(grad_and_value(loss), in_dims=(None, 0, 0, 0))(shared, part.phones, part.labels, own)
        squares = sum(value.flatten(1).pow(2).sum(1) for value in rows.values())
        lengths = torch.as_tensor(squares).sqrt()
        limit = Clipping(self.job.clip).limit(1)
        factors = torch.where(torch.isfinite(lengths), (limit / lengths.clamp(min=1e-30)).clamp(max=1.0), 0.0)
        return {name: torch.einsum("i,i...->...", factors, torch.nan_to_num(value, 0.0, 0.0, 0.0)) for name, value in rows.items()}  # fmt: skip

    # ------------------------------------------------------------------ answers

    @torch.no_grad()
    def logits(self, rows: CodedRows, *, alone: bool = False) -> NDArray[np.float32]:
        """Logits ``(rows, classes)``, of the fused decision or of the own network alone."""
        for module in (self.own, self.phones, self.fusion):
            module.eval()
        found = []
        for at in range(0, len(rows), 256):
            part = rows.take(np.arange(at, min(at + 256, len(rows))))
            own = self.own(part.inputs, part.lengths)
            found.append(own if alone else self.fusion(own, self.phones(part.phones, self.table)))
        return torch.cat(found).numpy() if found else np.zeros((0, 0), dtype=np.float32)


def _under(values: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _walk_back(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
