"""Parameter-efficient tuning: of a frozen network, only what is tuned is trained, travels and is averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

WORDS, LENGTH, WIDTH = 20, 6, 16


class Frozen(nn.Module):
    """A small language model whose weights stay as they are; ``how`` says what is tuned."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixing = nn.Linear(WIDTH, WIDTH)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.how = how
        self.head = nn.Linear(WIDTH, 2)
        if how == "prompt tuning":  # Lester et al. 2021: vectors before the words
            self.prompt = nn.Parameter(0.1 * torch.randn(3, WIDTH))
        if how == "p-tuning":  # Liu et al. 2021: the vectors come from a small network
            self.seeds = nn.Parameter(0.1 * torch.randn(3, 4))
            self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        if how == "adapters":  # Houlsby et al. 2019: a bottleneck beside the layer
            self.down, self.up = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)
        if how == "LoRA":  # Hu et al. 2021: a change of low rank
            self.a, self.b = nn.Parameter(0.1 * torch.randn(2, WIDTH)), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x: Any) -> Any:
        h = self.words(x.long())
        if self.how in ("prompt tuning", "p-tuning"):
            prompt = self.prompt if self.how == "prompt tuning" else self.encoder(self.seeds)
            h = torch.cat([prompt.expand(len(h), -1, -1), h], dim=1)
        mixed = self.mixing(h)
        if self.how == "adapters":
            mixed = mixed + self.up(torch.relu(self.down(mixed)))
        if self.how == "LoRA":
            mixed = mixed + h @ self.a.T @ self.b.T
        return self.head(torch.relu(mixed).mean(dim=1))


TUNED = {
    "prompt tuning": {"prompt"},
    "p-tuning": {"seeds", "encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias"},
    "adapters": {"down.weight", "down.bias", "up.weight", "up.bias"},
    "LoRA": {"a", "b"},
}


@pytest.mark.parametrize("how", TUNED)
def test_prompt_tuning_p_tuning_adapters_and_lora_send_only_what_is_tuned(how: str):
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    x = np.where(random.random((120, LENGTH)) < 0.7, y[:, None] * 10 + random.integers(0, 10, (120, LENGTH)), 3)
    rows = atoll.data.Dataset({"x": x.astype(np.float32), "y": y}, classes=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Frozen(how)
    before = {name: value.clone() for name, value in model.named_parameters()}
    job = atoll.Training(
        model=model,
        algorithm=atoll.FedAvg(lr=0.3, batch_size=10),
        selection=atoll.Everyone(),
        rounds=3,
        compile="never",
    )
    result = atoll.simulate(job, atoll.data.iid(rows, parties=3, seed=0), engine="inline", seed=1)
    assert set(result.params) == TUNED[how] | {"head.weight", "head.bias"}
    sent = 4 * sum(np.asarray(value).size for value in result.params.values())
    assert result.metrics[0]["bytes_up"] < 3 * (sent + 700)
    after = dict(result.model.named_parameters())
    for name in ("words.weight", "mixing.weight", "mixing.bias"):
        assert torch.equal(after[name], before[name])
    losses = result.metrics.column("loss")
    assert losses[-1] < losses[0]
