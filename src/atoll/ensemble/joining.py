"""How the answers of the leaves become one: mean, weights, median, max, an over-arch network, and a gate that sees the cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.extras import one_thread
from atoll.core.validation import Checked
from atoll.labels.committee import committee_weights
from atoll.torch import seeded

__all__ = [
    "AGGREGATES",
    "JoinedLeaves",
    "OverArch",
    "descend",
    "fit_gate",
    "fit_over_arch",
    "log_probabilities",
    "over_arch_inputs",
    "probabilities_of",
]

AGGREGATES = ("mean", "logits", "median", "max", "weights", "over_arch", "gate", "own_leaf")
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class OverArch(Checked):
    """The network over frozen leaves: ``softmax(g(a(x)))``, with ``a(x)`` the leaves' probabilities, last hidden layers, or both, of ``C (h + classes - 1)`` numbers.

    It is trained on the rows of opt-in users, by Adam on all of them at once; without such users, by federated learning as the leaves are.

    Attributes:
        inputs: ``predictions``, ``hidden`` or ``both``.
        hidden: width of each of its own hidden layers.
        epochs: steps on opt-in rows.
        lr: of Adam.
        decay: weight decay of Adam.
    """

    inputs: Literal["predictions", "hidden", "both"] = "both"
    hidden: Sequence[int] = (16,)
    epochs: int = 200
    lr: float = 0.01
    decay: float = 0.01

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.lr > 0 or self.decay < 0 or any(width < 1 for width in self.hidden):
            raise ConfigError(
                f"epochs={self.epochs}, lr={self.lr}, decay={self.decay}, hidden={list(self.hidden)}",
                where="OverArch",
                remedy="use at least one epoch, a rate above 0, a decay of 0 or more, and widths of at least 1",
            )


def log_probabilities(outputs: torch.Tensor) -> torch.Tensor:
    """Return the log of the classes' probabilities, ``(B, K)``, of logits ``(B, K)``, or of the logit of class 1, ``(B, 1)`` or ``(B,)``."""
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        logit = outputs.reshape(-1)
        return torch.stack([nn.functional.logsigmoid(-logit), nn.functional.logsigmoid(logit)], dim=-1)
    return outputs.log_softmax(-1)


def probabilities_of(logs: torch.Tensor) -> NDArray[np.float64]:
    """Return probabilities in double precision, ``(B, K)``, of their logs; close ones then stay apart where an area under the curve ranks them."""
    return np.asarray(logs.double().exp().numpy())


def _last_layer(model: nn.Module) -> nn.Linear:
    found = [part for part in model.modules() if isinstance(part, nn.Linear)]
    if not found:
        raise CompositionError(
            f"a {type(model).__name__} has no linear layer, whose inputs are the last hidden layer",
            where="OverArch.inputs",
            remedy="use inputs='predictions'",
        )
    return found[-1]


def _outputs_and_hidden(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs, and what enters the last linear layer, ``(B, h)``."""
    if isinstance(model, nn.Sequential) and len(model) > 1 and isinstance(model[-1], nn.Linear):
        hidden = model[:-1](x)
        return model[-1](hidden), hidden.flatten(1)
    kept: list[torch.Tensor] = []
    handle = _last_layer(model).register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        outputs = model(x)
    finally:
        handle.remove()
    return outputs, kept[-1].flatten(1)


def over_arch_inputs(members: Sequence[nn.Module], x: torch.Tensor, inputs: str) -> torch.Tensor:
    """Return ``a(x)``: of each leaf the probabilities of all classes but the first, and its last hidden layer, ``(B, C (classes - 1 + h))``."""
    parts = []
    for member in members:
        outputs, hidden = (member(x), None) if inputs == "predictions" else _outputs_and_hidden(member, x)
        if inputs != "hidden":
            parts.append(log_probabilities(outputs).exp()[:, 1:])
        if hidden is not None:
            parts.append(hidden)
    return torch.cat(parts, dim=-1)


class JoinedLeaves(nn.Module):
    """The leaves as one classifier of rows: it gives the log of the classes' probabilities, ``(B, classes)``.

    ========== =====================================================================
    aggregate  probability
    ========== =====================================================================
    mean       ``mean_c p_c(x)``
    logits     ``softmax(mean_c z_c(x))``: the geometric mean, scaled to sum 1
    weights    ``sum_c w_c p_c(x)``, with weights that fit labels of opt-in users
    median     the median of each class's probability, scaled to sum 1
    max        the largest one of class 1; of several classes, scaled to sum 1
    over_arch  a network over the leaves, see `OverArch`
    gate       ``sum_c G[u, c] p_c(x)``, with a row of weights for the user's leaf u
    own_leaf   ``p_u(x)``
    ========== =====================================================================

    Args:
        members: the leaves' models.
        aggregate: one of the above.
        head: the over-arch network, the weights ``(C,)`` or the gate ``(C, C)``.
        inputs: what the over-arch takes.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        aggregate: str,
        head: nn.Module | torch.Tensor | None = None,
        inputs: str = "both",
    ) -> None:
        super().__init__()
        if aggregate not in AGGREGATES:
            raise ConfigError(
                f"aggregate={aggregate!r}", where="JoinedLeaves", remedy=f"use one of {', '.join(AGGREGATES)}"
            )
        self.members, self.aggregate, self.inputs = nn.ModuleList(members), aggregate, inputs
        self.head = head if isinstance(head, nn.Module) else None
        self.register_buffer("weights", None if isinstance(head, nn.Module) else head)

    @property
    def wants_leaf(self) -> bool:
        """Whether rows need their user's leaf."""
        return self.aggregate in ("gate", "own_leaf")

    def forward(self, x: torch.Tensor, leaf: torch.Tensor | None = None) -> torch.Tensor:
        """Return log probabilities.

        Args:
            x: rows.
            leaf: place of each row's leaf, ``(B,)``; for the gate and the own leaf.
        """
        members: Any = self.members
        if self.aggregate == "over_arch" and self.head is not None:
            return log_probabilities(self.head(over_arch_inputs(members, x, self.inputs)))
        logs = torch.stack([log_probabilities(member(x)) for member in members])
        if self.wants_leaf:
            if leaf is None:
                raise ConfigError(
                    f"aggregate={self.aggregate!r} needs the leaf of each row",
                    where="JoinedLeaves",
                    remedy="give leaf=",
                )
            if self.aggregate == "own_leaf":
                return logs[leaf, torch.arange(len(leaf))]
            gate: Any = self.weights
            joined: torch.Tensor = (logs + gate[leaf].T.log()[:, :, None]).logsumexp(0)
            return joined
        return join_logs(logs, self.aggregate, self.weights)


def join_logs(logs: torch.Tensor, aggregate: str, weights: Any = None) -> torch.Tensor:
    """Return the joined log probabilities, ``(B, K)``, of those of the leaves, ``(C, B, K)``; the order of leaves does not matter without weights."""
    if aggregate in ("mean", "weights"):
        given = torch.full((len(logs),), 1.0 / len(logs)) if weights is None else weights
        return (logs + given.to(logs.dtype).log().reshape(-1, 1, 1)).logsumexp(0)
    if aggregate == "logits":
        return logs.mean(0).log_softmax(-1)
    chances = logs.exp()
    if aggregate == "median":
        joined = chances.quantile(0.5, dim=0)
        return (joined / joined.sum(-1, keepdim=True)).clamp_min(_TINY).log()
    if logs.shape[-1] == 2:
        one = chances[..., 1].amax(0)
        return torch.stack([1 - one, one], dim=-1).clamp_min(_TINY).log()
    joined = chances.amax(0)
    return (joined / joined.sum(-1, keepdim=True)).clamp_min(_TINY).log()


# ---------------------------------------------------------------- learned on rows of opt-in users


def fit_weights(logs: torch.Tensor, y: NDArray[np.int64]) -> torch.Tensor:
    """Return the weights of the largest likelihood, see `committee_weights`."""
    return torch.as_tensor(committee_weights([one.numpy() for one in logs], y))


def fit_gate(
    logs: torch.Tensor, y: NDArray[np.int64], leaf: NDArray[np.int64], start: float = 0.99, steps: int = 300
) -> torch.Tensor:
    """Return the gate ``(C, C)``: for each user's leaf the weights of all leaves, ``softmax(b I + D)``, learned from the user's own leaf on.

    ``D`` minimises ``-mean_i log sum_c G[u_i, c] p_c(y_i | x_i) + 0.001 |D|^2`` from 0, by Adam. A leaf whose users have no labels here keeps its start: nothing
    pulls its row. From equal weights, such users would get what fits others.

    Args:
        logs: log probabilities of the leaves, ``(C, B, K)``.
        y: labels, ``(B,)``.
        leaf: leaf of each row's user, ``(B,)``.
        start: weight of the own leaf at the start.
        steps: of Adam.
    """
    count = len(logs)
    if count == 1:
        return torch.ones(1, 1)
    begin = float(np.log(start * (count - 1) / (1 - start))) * torch.eye(count)
    moved = torch.zeros(count, count, requires_grad=True)
    places = torch.as_tensor(leaf)
    fits = logs[:, torch.arange(len(y)), torch.as_tensor(y)].T  # (B, C)

    def loss() -> torch.Tensor:
        chances = (begin + moved).log_softmax(-1)[places]
        return -(chances + fits).logsumexp(-1).mean() + 0.001 * (moved**2).sum()

    if len(y):
        descend([moved], loss, steps, 0.05, 0.0)
    return (begin + moved).softmax(-1).detach()


def descend(
    parameters: Sequence[torch.Tensor], loss: Callable[[], torch.Tensor], steps: int, lr: float, decay: float
) -> None:
    """Move parameters by Adam with decoupled weight decay (Loshchilov, Hutter 2019); ``torch.optim`` takes seconds to load, longer than this takes."""
    first, second = ([torch.zeros_like(one) for one in parameters] for _ in range(2))
    with one_thread(torch):
        for step in range(1, steps + 1):
            slopes = torch.autograd.grad(loss(), parameters)
            with torch.no_grad():
                for one, slope, m, v in zip(parameters, slopes, first, second, strict=True):
                    m.lerp_(slope, 0.1)
                    v.lerp_(slope**2, 0.001)
                    rate = lr / (1 - 0.9**step)
                    one.mul_(1 - lr * decay).sub_(rate * m / ((v / (1 - 0.999**step)).sqrt() + 1e-8))


class _Standardised(nn.Module):
    """Columns with mean 0 and standard deviation 1 on the rows that it was made of."""

    def __init__(self, inputs: torch.Tensor) -> None:
        super().__init__()
        spread = inputs.std(0, unbiased=False)
        self.register_buffer("mean", inputs.mean(0))
        self.register_buffer("spread", torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean: Any = self.mean
        spread: Any = self.spread
        made: torch.Tensor = (x - mean) / spread
        return made


def over_arch_network(inputs: torch.Tensor, classes: int, settings: OverArch) -> nn.Sequential:
    """Return the network, with columns standardised on the given ``a(x)``; weights follow PyTorch's generator."""
    widths = [inputs.shape[1], *settings.hidden]
    layers: list[nn.Module] = [_Standardised(inputs)]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def fit_over_arch(
    inputs: torch.Tensor, y: NDArray[np.int64], classes: int, settings: OverArch, seed: int
) -> nn.Sequential:
    """Return the over-arch, trained on rows of opt-in users.

    Args:
        inputs: ``a(x)`` of the rows, ``(B, ...)``.
        y: labels, ``(B,)``.
        classes: number of classes.
        settings: its settings.
        seed: of its weights.
    """
    network: Any = seeded(lambda: over_arch_network(inputs, classes, settings), seed)
    labels = torch.as_tensor(y)
    parameters = list(network.parameters())
    descend(
        parameters,
        lambda: nn.functional.cross_entropy(network(inputs), labels),
        settings.epochs,
        settings.lr,
        settings.decay,
    )
    found: nn.Sequential = network.eval().requires_grad_(False)
    return found
