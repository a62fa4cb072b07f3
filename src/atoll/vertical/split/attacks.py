"""Attacks on a split network, which its parties run on themselves: what do gradients at the cut tell of labels, and embeddings of columns?

Each party has both sides of its own secret: the guest knows the labels and what it sends a host, a host its columns and what it sends the guest. So each measures its own leak, and no one learns more by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.trees.tree import auc

from .networks import Layers, Segment, SegmentOptimizer, load_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ATTACKS", "LABEL_ATTACKS", "LabelLeaks", "complete_model", "invert_embeddings", "read_leaks"]

LABEL_ATTACKS = ("norm", "direction", "completion")
ATTACKS = (*LABEL_ATTACKS, "inversion")
_STEPS = 300
"""Steps of an attacker's own network."""


class LabelLeaks:
    """What a host could tell of the labels of two classes from what it sees, as areas under the curve: 0.5 is nothing, 1 everything.

    ``norm``: the rarer class has larger gradients; a row's score is its gradient's norm. ``direction``: gradients of one class have similar directions; the attacker knows one row of
    class 1 in each batch, and a row's score is the cosine of its gradient and that row's. Both are means over the batches with both classes, at each batch those of the other rows, and 1 minus
    the mean where this is larger. Li et al. 2021, "Label Leakage and Protection in Two-party Split Learning", section 3. ``completion``: see `complete_model`.

    Args:
        attacks: some of ``norm``, ``direction``, ``completion``.
        hosts: number of hosts; reported is the host that can tell most.
        rows: training rows.
        width: numbers of an embedding.
        state: what `state` returned.
    """

    def __init__(self, attacks: Sequence[str], hosts: int, rows: int, width: int, state: Any = None) -> None:
        self.attacks = [name for name in attacks if name in LABEL_ATTACKS]
        self._sums = np.zeros((hosts, 2)) if state is None else np.array(state["sums"])
        self._batches = np.zeros((hosts, 1), np.int64) if state is None else np.array(state["batches"])
        self._seen: NDArray[Any] | None = None
        if "completion" in self.attacks:
            kept = None if state is None else state["seen"]
            self._seen = np.zeros((hosts, rows, width), np.float32) if kept is None else np.array(kept)

    def note(self, host: int, embeddings: Any, gradients: Any, labels: NDArray[Any], at: NDArray[np.int64]) -> None:
        """Note what a host saw at a step.

        Args:
            host: its place, from 0.
            embeddings: what it sent, ``(rows, width)``.
            gradients: what it got for them.
            labels: of the rows, 0 or 1.
            at: which rows they were.
        """
        if self._seen is not None:
            self._seen[host, at] = embeddings.detach().numpy()
        ones = np.flatnonzero(labels == 1)
        if not (0 < len(ones) < len(labels)) or len(ones) < 2:
            return
        seen = gradients.detach().numpy().astype(np.float64)
        norms = np.sqrt((seen * seen).sum(axis=1))
        cosines = seen @ seen[ones[0]] / np.maximum(norms * norms[ones[0]], 1e-300)
        others = np.arange(len(labels)) != ones[0]
        self._sums[host] += auc(labels, norms), auc(labels[others], cosines[others])
        self._batches[host] += 1

    def result(self, labels: NDArray[Any]) -> dict[str, float]:
        """Attack -> area under the curve, of the host that can tell most."""
        means = np.where(self._batches > 0, self._sums / np.maximum(1, self._batches), 0.5)
        found = {name: _either(means[:, k]) for k, name in enumerate(("norm", "direction"))}
        if self._seen is not None:
            found["completion"] = max(complete_model(each, labels) for each in self._seen)
        return {name: found[name] for name in self.attacks}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"sums": self._sums, "batches": self._batches, "seen": self._seen}


def complete_model(embeddings: NDArray[Any], labels: NDArray[Any], known: int = 20, seed: int = 0) -> float:
    """The area under the curve of a host that completes its bottom by a top of its own, trained on few rows whose labels it knows.

    Fu et al. 2022, "Label Inference Attacks Against Vertical Federated Learning", section 4.1. The paper trains the bottom further, with unlabelled rows; here it stays as it is, so that this is
    the least that the attack finds.

    Args:
        embeddings: ``(rows, width)``, the host's of the training rows.
        labels: 0 or 1.
        known: rows of each class that the attacker knows; the other rows are judged.
        seed: of which rows are known, and of the top's initial weights.
    """
    torch, rng = load_torch(), Rng.of(seed)
    order = rng.child("known").generator().permutation(len(labels))
    mine = np.concatenate([order[labels[order] == k][:known] for k in (0, 1)])
    others = np.setdiff1d(np.arange(len(labels)), mine)
    values = _standard(embeddings)
    top = Segment(
        Layers(values.shape[1], (16, 1)), SegmentOptimizer("adam", 0.01, decay=1e-2), rng.child("top"), np.float32
    )
    targets = torch.from_numpy(labels[mine].astype(np.float32))
    for _ in range(_STEPS):
        torch.nn.functional.binary_cross_entropy_with_logits(top(values[mine])[:, 0], targets).backward()
        top.step()
    with torch.no_grad():
        scores = top(values[others])[:, 0].numpy()
    found = auc(labels[others], scores)
    return found if np.isfinite(found) else 0.5


def invert_embeddings(embeddings: NDArray[Any], columns: NDArray[Any], seed: int = 0) -> float:
    """The share of the columns' variance that the guest can reconstruct, by a network trained on rows whose columns it knows, from the others' embeddings: at most 1, and 0 is nothing.

    He, Zhang, Lee 2019, "Model inversion attacks against collaborative inference", section 4 (black box). The guest knows half of the rows, which is generous.

    Args:
        embeddings: ``(rows, width)``.
        columns: ``(rows, columns)``, scaled.
        seed: of which rows are known, and of the network's initial weights.
    """
    torch, rng = load_torch(), Rng.of(seed)
    order = rng.child("known").generator().permutation(len(columns))
    mine, others = np.array_split(order, 2)
    values, targets = _standard(embeddings), torch.from_numpy(columns.astype(np.float32))
    layers = Layers(values.shape[1], (64, columns.shape[1]))
    decoder = Segment(layers, SegmentOptimizer("adam", 0.01), rng.child("decoder"), np.float32)
    draw = rng.child("batches").generator()
    for _ in range(_STEPS):
        at = draw.choice(mine, min(256, len(mine)), replace=False)
        torch.nn.functional.mse_loss(decoder(values[at]), targets[at]).backward()
        decoder.step()
    with torch.no_grad():
        error = float(((decoder(values[others]) - targets[others]) ** 2).sum())
    spread = float(((targets[others] - targets[mine].mean(dim=0)) ** 2).sum())
    return max(0.0, 1 - error / spread) if spread > 0 else 0.0


def read_leaks(result: Any) -> dict[str, float]:
    """What the parties of a training have measured (``SplitNet(audit=...)``): attack -> the largest over the parties.

    Args:
        result: the `VerticalResult`, with the parties' parts at hand.
    """
    found: dict[str, float] = {}
    for name in result.parties:
        leaks: Mapping[str, float] = result.replies[name]["half"]["part"].get("leaks", {})
        found.update({attack: max(value, found.get(attack, 0.0)) for attack, value in leaks.items()})
    return {name: found[name] for name in result.job.model.audit if name in found}


def _either(means: NDArray[Any]) -> float:
    """The largest of areas under curves, whichever class has the larger scores."""
    return float(np.maximum(means, 1 - means).max())


def _standard(embeddings: NDArray[Any]) -> Any:
    values = np.asarray(embeddings, np.float64)
    spread = values.std(axis=0)
    return load_torch().from_numpy(
        ((values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)
    )
