"""The modules of a party's own network, which reads words or frames, and of the shared one, which reads phones. Needs the extra ``torch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from .networks import BiGRU, FrameCNN, OwnNetwork, PretrainedText, SequenceTransformer, VectorMLP
from .utterances import Utterances

__all__ = ["Attentive", "CodedRows", "Convolutions", "Fusion", "Perceptron", "PhoneNetwork", "Recurrent", "Scaled"]


def _mean_of(sequence: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The mean over each sequence's own steps."""
    there = (torch.arange(sequence.shape[1])[None] < lengths[:, None]).to(sequence.dtype)[..., None]
    return (sequence * there).sum(1) / there.sum(1).clamp(min=1)


class Scaled(nn.Module):
    """Frames in units of their deviation, which training rows say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def fit(self, frames: Sequence[Any]) -> None:
        """Take the units of these frames."""
        rows = torch.from_numpy(np.concatenate([np.asarray(one) for one in frames]))
        self.centre = rows.mean(0)
        self.spread = rows.std(0, correction=0).clamp(min=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return frames in those units."""
        return (x - self.centre) / self.spread


def _first_layer(inputs: int, width: int, *, words: bool) -> nn.Module:
    """Words or frames to vectors."""
    return nn.Embedding(inputs, width, padding_idx=0) if words else nn.Sequential(Scaled(inputs), nn.Linear(inputs, width))  # fmt: skip


class Convolutions(nn.Module):
    """The module of `FrameCNN`."""

    def __init__(self, plan: FrameCNN, inputs: int, classes: int, *, words: bool) -> None:
        super().__init__()
        self.first = _first_layer(inputs, plan.filters, words=words)
        self.filters = nn.ModuleList(nn.Conv1d(plan.filters, plan.filters, w, padding=w // 2) for w in plan.widths)
        self.drop = nn.Dropout(plan.dropout)
        self.last = nn.Linear(plan.filters * len(plan.widths), classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``."""
        there = (torch.arange(x.shape[1])[None] < lengths[:, None])[:, None]
        seen = (self.first(x).transpose(1, 2)) * there
        told = [torch.relu(one(seen))[..., : x.shape[1]].masked_fill(~there, 0.0).amax(2) for one in self.filters]
        return self.last(self.drop(torch.cat(told, 1)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """The module of `BiGRU`."""

    def __init__(self, plan: BiGRU, inputs: int, classes: int, *, words: bool) -> None:
        super().__init__()
        self.first = _first_layer(inputs, plan.width, words=words)
        self.cells = nn.GRU(plan.width, plan.width, plan.layers, batch_first=True, bidirectional=True, dropout=plan.dropout if plan.layers > 1 else 0.0)  # fmt: skip
        self.drop = nn.Dropout(plan.dropout)
        self.last = nn.Linear(2 * plan.width, classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``."""
        seen = nn.utils.rnn.pack_padded_sequence(self.first(x), lengths.clamp(min=1), batch_first=True, enforce_sorted=False)  # fmt: skip
        told, _ = nn.utils.rnn.pad_packed_sequence(self.cells(seen)[0], batch_first=True, total_length=x.shape[1])
        return self.last(self.drop(_mean_of(told, lengths)))  # type: ignore[no-any-return]


class Attentive(nn.Module):
    """The module of `SequenceTransformer`."""

    def __init__(self, plan: SequenceTransformer, inputs: int, classes: int, *, words: bool) -> None:
        super().__init__()
        self.first = _first_layer(inputs, plan.width, words=words)
        layer = nn.TransformerEncoderLayer(plan.width, plan.heads, 4 * plan.width, plan.dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, plan.layers, enable_nested_tensor=False)
        self.last = nn.Linear(plan.width, classes)
        self.width = plan.width

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``."""
        seen = self.first(x)
        place = torch.arange(x.shape[1])[:, None] / 10_000 ** (torch.arange(0, self.width, 2)[None] / self.width)
        seen = seen + torch.stack([place.sin(), place.cos()], 2).reshape(x.shape[1], self.width)
        absent = torch.arange(x.shape[1])[None] >= lengths.clamp(min=1)[:, None]
        return self.last(_mean_of(self.layers(seen, src_key_padding_mask=absent), lengths))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """The module of `PretrainedText` and `VectorMLP`: a hidden layer on features."""

    def __init__(self, plan: PretrainedText | VectorMLP, inputs: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(Scaled(inputs), nn.Linear(inputs, plan.hidden))
        self.drop = nn.Dropout(plan.dropout)
        self.last = nn.Linear(plan.hidden, classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``."""
        return self.last(self.drop(torch.relu(self.first(_mean_of(x, lengths)))))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ what is shared


class PhoneNetwork(nn.Module):
    """The shared network: ``o_p = f_p([phi_spe(p); phi_tpe(p)])`` (equations 39 and 40).

    ``phi_tpe`` is a trained vector a phone, ``phi_spe`` the fixed vector of the acoustic table. ``f_p`` looks at ``span`` phones at a time, takes the largest values over the
    utterance and, beside them, the mean acoustic vector; a hidden layer and logits follow.

    Args:
        phones: number of phones.
        classes: number of classes.
        acoustic: numbers of a vector of the table.
        width: numbers of a trained vector.
        hidden: units.
        span: phones that a unit sees.
    """

    def __init__(self, phones: int, classes: int, acoustic: int, width: int, hidden: int, span: int) -> None:
        super().__init__()
        self.tpe = nn.Embedding(phones + 1, width, padding_idx=0)
        self.window = nn.Linear(span * width, hidden)
        self.sound = nn.Linear(acoustic, hidden)
        self.last = nn.Linear(2 * hidden, classes)
        self.span = span

    def forward(self, phones: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``.

        Args:
            phones: ``(rows, longest)``: number of a phone and 1; 0 is padding.
            table: ``(phones + 1, acoustic)``; row 0 is zero.
        """
        there = (phones > 0)[..., None]
        seen = nn.functional.pad(self.tpe(phones) * there, (0, 0, self.span // 2, (self.span - 1) // 2))
        parts = [seen[..., i : i + phones.shape[-1], :] for i in range(self.span)]
        # A linear layer on shifted copies is a convolution whose gradients of single examples are one matrix product each.
        told = torch.relu(self.window(torch.cat(parts, -1))).masked_fill(~there, 0.0).amax(-2)
        count = there.sum(-2).clamp(min=1)
        sound = torch.relu(self.sound((table[phones] * there).sum(-2) / count))
        return self.last(torch.cat([told, sound], -1))  # type: ignore[no-any-return]


class Fusion(nn.Module):
    """``y = f_m(o, o_p)`` (equation 41), decisions joined late: a linear layer on both logits. It begins as their mean.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * classes, classes)
        with torch.no_grad():
            self.join.weight.copy_(torch.cat([torch.eye(classes), torch.eye(classes)], 1) / 2)
            self.join.bias.zero_()

    def forward(self, own: torch.Tensor, phones: torch.Tensor) -> torch.Tensor:
        """Return logits ``(rows, classes)``."""
        return self.join(torch.cat([own, phones], -1))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ rows as tensors


@dataclass(frozen=True)
class CodedRows:
    """Utterances as tensors, padded to the longest.

    Attributes:
        inputs: numbers of words ``(rows, longest)``, or frames ``(rows, longest, width)``.
        lengths: ``(rows,)``.
        phones: ``(rows, longest)``, 0 is padding.
        labels: ``(rows,)``.
    """

    inputs: torch.Tensor
    lengths: torch.Tensor
    phones: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, rows: Utterances, classes: Sequence[str], vocabulary: Mapping[str, int], own: OwnNetwork) -> CodedRows:  # fmt: skip
        """Code rows; a word outside the vocabulary is 1. An ``own`` network that reads no words makes one frame of each text."""
        number, width = {name: place for place, name in enumerate(classes)}, rows.width
        if rows.modality == "text" and not own.reads_words:
            features = np.asarray(own.encode([" ".join(words) for words in rows.inputs]), dtype=np.float32)
            coded, width = list(features[:, None]), features.shape[1]
        elif rows.modality == "text":
            coded = [np.array([vocabulary.get(word, 1) for word in words], dtype=np.int64) for words in rows.inputs]
        else:
            coded = list(rows.inputs)
        lengths = torch.tensor([len(one) for one in coded], dtype=torch.int64)
        labels = torch.tensor([number[label] for label in rows.labels], dtype=torch.int64)
        return cls(_pad(coded, width), lengths, _pad([np.asarray(p) + 1 for p in rows.phones], 0), labels)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, at: Any) -> CodedRows:
        """Some of the rows, cut to the longest of them."""
        rows = torch.as_tensor(np.asarray(at, dtype=np.int64))
        lengths, phones = self.lengths[rows], self.phones[rows]
        longest = int(lengths.max()) if len(rows) else 0
        used = phones.gt(0).sum(1)
        heard = int(used.max()) if len(rows) else 0
        return CodedRows(self.inputs[rows][:, : max(longest, 1)], lengths, phones[:, : max(heard, 1)], self.labels[rows])  # fmt: skip


def _pad(rows: Sequence[Any], width: int) -> torch.Tensor:
    """Sequences as one tensor, with zeros behind the shorter ones."""
    longest = max([len(row) for row in rows] or [0], default=0) or 1
    shape = (len(rows), longest, width) if width else (len(rows), longest)
    found = np.zeros(shape, dtype=np.float32 if width else np.int64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return torch.from_numpy(found)
