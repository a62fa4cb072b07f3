"""The two columns with real data: digits by writer and tweets, with their models.

They stand in for the paper's FEMNIST and Sent140, which are other data, so that only differences between methods
compare:

* ``"qmnist"``: 50 of the 539 writers of MNIST's training digits, drawn without replacement by a seed, one per client
  (about 112 digits of ten classes); the paper has 50 clients with five of ten lower-case letters and 328 images. Model
  of the paper: 784-196-10 with ReLU (without its dropout, and, unless ``softmax=True``, without the second softmax of
  its code).
* ``"tweets"``: 52 clients with Sentiment140's 20,000 tweets, or a share of them drawn by a seed, in equal parts whose
  mix of the two labels is drawn from ``Dir(1)``; the paper has 52 clients with 621 tweets. A bidirectional LSTM with 32
  hidden units per direction on 25 words, with learned embeddings of 32 numbers for the 2,000 most frequent words of the
  training tweets; the paper has 128 per direction and pretrained embeddings of 300.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

    from .model import Tested

__all__ = ["COLUMNS", "divided", "encode", "islands", "model", "vocabulary"]

COLUMNS: dict[str, tuple[str, int]] = {"qmnist": ("FEMNIST", 15), "tweets": ("Sent140", 15)}
"""Our data -> the paper's column, and 30 % of the clients."""
_WORDS = 2000
_LENGTH = 25
_PAD, _UNKNOWN = 0, 1
_WIDTH = 32
_PATTERN = re.compile(r"[a-z']+|[!?:;()]+")


def _words(text: str) -> list[str]:
    return _PATTERN.findall(str(text).lower())


def vocabulary(texts: Iterable[str], size: int = _WORDS) -> dict[str, int]:
    """Return word -> number, from 2 on, for the most frequent words that occur at least twice; on a tie, in alphabetical order.

    Args:
        texts: training texts only.
        size: most words.
    """
    counts = Counter(word for text in texts for word in _words(text))
    known = sorted((word for word, n in counts.items() if n > 1), key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(known[:size], start=2)}


def encode(texts: Sequence[str], known: dict[str, int], length: int = _LENGTH) -> np.ndarray:
    """Return the first words of each text, ``(texts, length)`` int64, after padding; 0 is padding and 1 an unknown word."""
    made = np.full((len(texts), length), _PAD, np.int64)
    for row, text in zip(made, texts, strict=True):
        numbers = [known.get(word, _UNKNOWN) for word in _words(text)[:length]]
        if numbers:
            row[-len(numbers) :] = numbers
    return made


@functools.lru_cache(maxsize=8)
def divided(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0) -> tuple[Islands, Islands]:
    """Return the clients as (training rows, measuring rows): a tenth of each is held out, a fifth of the tweets (the paper's share), and a tenth of the rest while tuning.

    Args:
        kind: one of `COLUMNS`.
        tuning: measure on a tenth of the training rows instead of the test rows, which are left out.
        draw: seed of the draw of writers or tweets, and of the held-out rows.
        rows: most tweets in all; 0 for all.

    Raises:
        DataError: no data folder, or files missing from it.
    """
    whole, texts = _digits(draw) if kind == "qmnist" else _tweets(draw, rows)
    train, test = whole.holdout(0.1 if texts is None else 0.2, seed=draw)
    parts = train.holdout(0.1, seed=draw + 1) if tuning else (train, test)
    if texts is None:
        return parts
    known = vocabulary(texts[i] for i in np.asarray(parts[0].pooled().x)[:, 0])
    numbers = encode(texts, known)
    return _read(parts[0], numbers), _read(parts[1], numbers)


def _digits(draw: int) -> tuple[Islands, None]:
    from atoll.data import natural, qmnist_writers

    every = natural(qmnist_writers(flat=True), "writer")
    chosen = np.sort(np.random.default_rng(draw).choice(len(every), 50, replace=False))
    return every.subset(chosen).with_test(None), None


def _tweets(draw: int, rows: int) -> tuple[Islands, list[str]]:
    """Return the division, whose ``x`` is the number of a tweet, and the tweets."""
    from atoll.data import Dataset, dirichlet, sentiment140

    data = sentiment140(test=0)
    chosen = np.random.default_rng(draw).permutation(len(data))[: rows or None]
    numbered = Dataset(
        {"x": chosen[:, None].astype(np.int64), "y": np.asarray(data.y)[chosen].astype(np.int64)}, task="classification"
    )
    return dirichlet(numbered, parties=52, alpha=1.0, seed=draw, balanced=True), [str(text) for text in data["text"]]


def _read(part: Islands, numbers: np.ndarray) -> Islands:
    from atoll.data import Dataset, Islands

    def read(shard: Any) -> Dataset:
        return Dataset({"x": numbers[np.asarray(shard.x)[:, 0]], "y": np.asarray(shard.y)}, task="classification")

    return Islands.from_datasets({name: read(part.shard(i)) for i, name in enumerate(part.names)})


def islands(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0) -> Islands:
    """Return the clients, with the measuring rows as the server's test set."""
    train, test = divided(kind, tuning, draw, rows)
    return train.with_test(test.pooled())


def model(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, softmax: bool = False) -> Tested:
    """Return the model of a column, with each client's measuring rows; ``softmax`` as in the paper's code, see `twice`."""
    from .model import Tested, twice

    make = _perceptron if kind == "qmnist" else _recurrent
    return Tested(twice(make) if softmax else make, divided(kind, tuning, draw, rows)[1])


def _perceptron() -> Any:
    from atoll.models import mlp

    return mlp(784, 10, [196])()


def _recurrent() -> Any:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        """Embeddings, a bidirectional LSTM, and a linear layer on the last state of both directions."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(_WORDS + 2, _WIDTH)
            self.cells = nn.LSTM(_WIDTH, _WIDTH, batch_first=True, bidirectional=True)
            self.last = nn.Linear(2 * _WIDTH, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.cells(self.embed(x))
            ends = torch.cat([states[:, -1, :_WIDTH], states[:, 0, _WIDTH:]], -1)
            return self.last(ends)  # type: ignore[no-any-return]

    return Recurrent()
