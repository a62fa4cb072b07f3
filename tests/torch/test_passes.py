"""The passes of a round before its last one: states alone, in native code of few widths where a batch is all that a client has."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from atoll.core.algebra.aggregate import Parts
from atoll.learn.algorithms.full_gradient import FullGradient
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.learner import states_after
from tests.support.torch_toys import broadcast_of, keys_of, seeded, shards_of, worst


class _Told(FullGradient):
    """A pass whose replies nobody can add up."""

    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        state = super().finish(local, broadcast, client, work)[1]
        return {"each": Parts(local["anchor"], examples=work.examples)}, state


@pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("algorithm", "widths"), [(FullGradient(), [256]), (_Told(), [])], ids=["sums", "replies"])
def test_states_after_a_pass_over_whole_data_of_unlike_clients(
    algorithm: Any, widths: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One client is too large for native code; the clients of both ways are put back in order."""
    monkeypatch.setenv("ATOLL_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "native"))
    model = seeded(lambda: nn.Linear(6, 4))
    how = {"mode": "vector", "block": 3, "native": True, "widths": [], "uneven": True}
    training, broadcast = LocalTraining(model, algorithm, choices=how), broadcast_of(model)
    shards, keys = shards_of([3, 4097, 40, 0], (6,)), keys_of(4)
    states = states_after(training, shards, broadcast, None, keys)
    for i, shard in enumerate(shards):
        assert worst(training.one(shard, broadcast, None, int(keys[i]))[1], states[i]) < 1e-5
    assert training._runner is not None
    assert [key[0][0] for key, made in training._runner.natives._made.items() if made is not None] == widths
