"""Tokenised text: dictionaries as tokenisers give them, and models that take them by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import DataError
from atoll.data import from_tokens
from atoll.torch import LocalTraining, NamedInputs
from tests.support.torch_toys import broadcast_of, compare, seeded

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 30, (40, 6))
MASK = (RNG.random((40, 6)) < 0.8).astype(np.int64)


class Mean(nn.Module):
    """Takes its inputs by name, gives a dictionary."""

    def __init__(self, gives: str = "dict") -> None:
        super().__init__()
        self.embedding, self.head, self.gives = nn.Embedding(30, 8), nn.Linear(8, 3), gives

    def forward(self, *, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> Any:
        mask = attention_mask.unsqueeze(-1).to(torch.float32)
        made = self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1.0))
        return {"dict": {"logits": made}, "tensor": made, "other": {"scores": made}}[self.gives]


def tokens(**more: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": MASK, "labels": IDS[:, 0] % 3, **more}


def test_inputs_are_stacked_in_order() -> None:
    rows = from_tokens(tokens(), name="toy")
    assert (rows.task, rows.classes, rows["x"].shape, rows["x"].dtype) == ("classification", 3, (40, 2, 6), np.int64)
    assert np.array_equal(rows["x"][:, 0], IDS)
    assert np.array_equal(rows["x"][:, 1], MASK)
    alone = from_tokens({"input_ids": torch.from_numpy(IDS)}, inputs=["input_ids"])
    assert (alone.task, alone["x"].shape) == ("unlabelled", (40, 1, 6))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input_idz": IDS}, "no key 'input_ids'.*[Dd]id you mean 'input_idz'"),
        (tokens(input_ids=[[1, 2], [3]]), "'input_ids' has rows of unequal length.*padding=True"),
        (tokens(attention_mask=MASK[:, :4]), r"different shapes: input_ids \(40, 6\), attention_mask \(40, 4\)"),
        (tokens(input_ids=IDS * 0.5), "type float64"),
        (tokens(input_ids=IDS[:, 0]), r"shape \(40,\)"),
    ],
)
def test_what_is_no_tokens_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_tokens(given)


@pytest.mark.parametrize("mode", ["vector", "single"])
def test_a_model_that_takes_names_trains_as_the_reference(mode: str) -> None:
    rows = from_tokens(tokens())
    model = seeded(lambda: NamedInputs(Mean()))
    shards = [rows.take(np.arange(a, b)) for a, b in ((0, 12), (12, 19), (19, 40))]
    choices = {"mode": mode, "block": 3 if mode == "vector" else 1, "native": False}
    assert compare(LocalTraining(model, FedAvg(batch_size=5), choices=choices), shards, broadcast_of(model)) < 1e-5


@pytest.mark.network
@pytest.mark.parametrize("gives", ["dict", "tensor"])
def test_it_learns(gives: str) -> None:
    islands = atoll.data.iid(from_tokens(tokens(labels=(IDS * MASK).sum(1) > 45)), parties=4, seed=0)
    job = atoll.Training(
        model=lambda: NamedInputs(Mean(gives)),
        algorithm=FedAvg(lr=1.0, epochs=5, batch_size=5),
        selection=atoll.Everyone(),
        rounds=15,
    )
    losses = atoll.simulate(job, islands, seed=1).metrics.column("loss")
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("model", "x", "words"),
    [
        (NamedInputs(Mean("other")), torch.zeros(2, 2, 6, dtype=torch.int64), "has no tensor 'logits'"),
        (NamedInputs(Mean()), torch.zeros(2, 3, 6, dtype=torch.int64), r"rows of shape \(3, 6\) for 2 inputs"),
    ],
)
def test_what_does_not_fit_is_refused(model: nn.Module, x: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        model(x)


class Tagger(nn.Module):
    """Scores for each token, as a token classifier or a language model gives them: (rows, length, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 8), nn.Linear(8, 3)

    def forward(self, *, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> Any:
        return {"logits": self.head(self.embedding(input_ids))}


def tags(wrong: int = -100) -> np.ndarray[Any, Any]:
    return np.where(MASK == 1, IDS % 3, wrong)


def test_targets_of_tokens_leave_the_ignored_ones_out() -> None:
    rows = from_tokens(tokens(labels=tags()))
    assert (rows.task, rows.classes, rows.y.shape) == ("tokens", 3, (40, 6))
    assert np.array_equal(rows["labelled"], MASK == 1)
    assert (rows.y[MASK == 0] == 0).all()  # what stands there in the source cannot matter
    other = from_tokens(tokens(labels=tags(-1)), ignore=-1)
    assert np.array_equal(other.y, rows.y)
    with pytest.raises(DataError, match=r"label «-100» at row \(\d+, \d+\) is outside 0\.\.2"):
        from_tokens(tokens(labels=tags()), ignore=-1)
    with pytest.raises(DataError, match="task='tokens'"):
        from_tokens(tokens(labels=tags()), task="classification")


@pytest.mark.network
def test_a_tagger_learns_from_the_labelled_tokens_alone() -> None:
    islands = atoll.data.iid(from_tokens(tokens(labels=tags())), parties=4, seed=0).with_test(
        from_tokens(tokens(labels=tags()))
    )
    job = atoll.Training(
        model=lambda: NamedInputs(Tagger()),
        algorithm=FedAvg(lr=2.0, epochs=5, batch_size=4),
        selection=atoll.Everyone(),
        rounds=10,
        evaluation=atoll.Evaluation(clients=-1),
    )
    for engine in ("batched", "inline"):
        last = atoll.simulate(job, islands, engine=engine).metrics[-1]
        assert last["test/accuracy"] > 0.95
        assert last["clients/accuracy"] == pytest.approx(last["test/accuracy"])


def test_the_loss_of_tokens_is_that_of_pytorch_with_its_ignore_index() -> None:
    model = seeded(lambda: NamedInputs(Tagger()))
    rows = from_tokens(tokens(labels=tags()))
    islands = atoll.data.iid(rows, parties=1, seed=0).with_test(rows)
    job = atoll.Training(model=model, algorithm=FedAvg(lr=1e-12, batch_size=None), selection=atoll.Everyone(), rounds=1)
    found = atoll.simulate(job, islands, engine="inline").metrics[-1]
    scores = model(torch.tensor(np.array(rows["x"]))).detach()
    by_row = [
        torch.nn.functional.cross_entropy(s[None], torch.as_tensor(y)[None])
        for s, y in zip(scores, tags(), strict=True)
    ]
    labelled = torch.as_tensor(MASK).double().mean(1)
    expected = (
        sum(loss.double() * share for loss, share in zip(by_row, labelled, strict=True) if share > 0) / labelled.sum()
    )
    assert found["test/loss"] == pytest.approx(float(expected), rel=1e-5)
    whole = torch.nn.functional.cross_entropy(scores, torch.as_tensor(tags()))
    assert float(whole) == pytest.approx(float(expected), rel=1e-5)  # every labelled token counts alike
