"""Data and models of the three tasks, and how they differ from the paper's.

* **femnist**: the paper has FEMNIST with 3,550 writers and a ResNet18. Ours are MNIST's digits by their 539 real writers (QMNIST's record), and a perceptron with
  one hidden layer.
* **celeba**: the paper has the images, 9,343 clients and a CNN. Ours are CelebA's 39 other attributes, 10,177 people, and a perceptron that says whether a
  person smiles.
* **sent140**: the paper has 59,400 users and an LSTM. Ours are 20,000 tweets, of which no user has more than 9, over 500 clients of a Dirichlet distribution of labels,
  and a small LSTM over characters.

Some clients are no clients here: their rows are public, and a mock client on them fits scales and codebooks. Learning rates were chosen on these rows, by the
plain training, never on test rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["characters", "celebrities", "perceptron", "tweets", "writers"]

LENGTH = 40
"""Characters of a tweet that the model reads."""


def writers(public: int = 30, clients: int = 0, tests: int = 0) -> Islands:
    """Return MNIST by writer.

    Args:
        public: writers whose digits are public.
        clients: number of the others; 0 for all.
        tests: most test rows; 0 for all.
    """
    from atoll.data import natural, qmnist_writers

    data = qmnist_writers(flat=True)
    return _with_public(data, natural(data, "writer"), public, clients, tests)


def celebrities(public: int = 100, clients: int = 0, tests: int = 4000) -> Islands:
    """Return CelebA's attributes by identity; arguments as in `writers`."""
    from atoll.data import celeba_attributes, natural

    data = celeba_attributes()
    return _with_public(data, natural(data, "identity"), public, clients, tests)


def tweets(public: int = 25, clients: int = 0, tests: int = 0, alpha: float = 10.0) -> Islands:
    """Return tweets as characters, over 500 clients with labels by a Dirichlet distribution; arguments as in `writers`.

    Args:
        public: clients whose tweets are public.
        clients: number of the others; 0 for all.
        tests: most test rows; 0 for all.
        alpha: the distribution's concentration.
    """
    from atoll.data import dirichlet, sentiment140

    data = _encoded(sentiment140())
    return _with_public(data, dirichlet(data, parties=500, alpha=alpha, seed=0), public, clients, tests)


def _with_public(data: Dataset, whole: Islands, public: int, clients: int, tests: int) -> Islands:
    """Make the rows of the first clients of a fixed shuffle public, and keep some of the others."""
    order = np.random.default_rng(0).permutation(len(whole))
    own, others = order[:public], order[public : public + clients if clients else None]
    rows = whole.subset(np.sort(own)).pooled().with_test(None)
    made = whole.subset(np.sort(others))
    if tests and data.test is not None:
        made = made.with_test(data.test.take(np.arange(min(tests, len(data.test)))))
    return made.with_public(rows)


def _encoded(data: Dataset) -> Dataset:
    """Turn texts into numbers of characters: printable ASCII from 1, anything else and the rest 0."""

    def codes(part: Any) -> Any:
        texts = part["text"]
        x = np.zeros((len(texts), LENGTH), dtype=np.int64)
        for row, text in zip(x, texts, strict=True):
            own = np.frombuffer(str(text).lower().encode("ascii", "ignore")[:LENGTH], dtype=np.uint8).astype(np.int64)
            row[: len(own)] = np.where((own >= 32) & (own < 127), own - 31, 0)
        return part.with_columns({"x": x})

    made = codes(data)
    return made.with_test(None if made.test is None else codes(made.test))  # type: ignore[no-any-return]


def perceptron(features: int, hidden: int, outputs: int) -> Callable[[], Any]:
    """Return a maker of a perceptron with one hidden layer, so that its weights follow the run's seed."""
    from atoll.models import mlp

    return mlp(features, outputs, [hidden])


def characters(embedding: int = 16, hidden: int = 32) -> Callable[[], Any]:
    """Return a maker of an LSTM over characters whose last states vote for two classes."""

    def make() -> Any:
        from torch import nn

        class Characters(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(96, embedding)
                self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
                self.head = nn.Linear(hidden, 2)

            def forward(self, x: Any) -> Any:
                states, _ = self.lstm(self.embedding(x))
                return self.head(states.mean(dim=1))

        return Characters()

    return make
