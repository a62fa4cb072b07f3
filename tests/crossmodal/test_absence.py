"""A party that dies at any step, or is away for a round and returns; a server that asks twice; rows at the edge of what can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, DataError, QuorumError
from atoll.core.requests.island import Island
from atoll.core.requests.request import Reply
from atoll.crossmodal import BiGRU, Crossmodal, FrameCNN, SideModel, Utterances
from atoll.crossmodal import parties as parties_of_a_job
from atoll.engines import Inline
from atoll.privacy import epsilon_of
from tests.crossmodal.helpers import made_side

pytest.importorskip("torch")

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(3,)), text=FrameCNN(filters=4, widths=(1,)), rounds=3, iterations=1, pretrain=1, batch=8, hidden=4, width=4,
)  # fmt: skip


def parties():
    return {"east": made_side("text", 16, 3), "north": made_side("text", 16, 2), "south": made_side("speech", 16, 1)}


def play(job=JOB, among=None, **options):
    return atoll.simulate(job, among or parties(), **{"engine": "inline", "progress": False, **options}).outcome


class Losing(Inline):
    """A party is gone at some steps: what it does there takes no effect, and nobody hears of it.

    Args:
        gone: pairs of a step and a round; of steps without a round the round is 0.
        party: its position among the parties.
    """

    def __init__(self, *gone, party):
        super().__init__()
        self.gone, self.party = gone, party

    async def run(self, request, positions):
        step = request.task.name.rpartition(":")[2]
        if (step, int((request.message or {}).get("round", 0))) not in self.gone:
            return await super().run(request, positions)
        rest = await super().run(request, positions[positions != self.party])
        lost = [Reply(self.party, rejected="gone")] if self.party in positions else []
        return sorted([*rest, *lost], key=lambda reply: reply.party)


@pytest.mark.parametrize("step", [("open", 0), ("begin", 0), ("train", 1), ("mix", 2), ("close", 0)])
@pytest.mark.parametrize("party", [0, 2])
def test_the_others_go_on_when_a_party_dies_at_any_step(step, party):
    name = ["east", "north", "south"][party]
    later = [("train", number) for number in range(step[1] + 1, 4)] + [("close", 0)]
    found = play(engine=Losing(step, *later, party=party))
    assert set(found.sides) == {"east", "north", "south"} - {name}
    assert found.rounds == 3
    assert all(0 <= side["f1"] <= 1 for side in found.sides.values())


def test_a_party_that_was_away_for_a_round_returns_and_its_peers_have_what_it_learnt(monkeypatch):
    monkeypatch.setattr(parties_of_a_job, "count_noisily", lambda rows, noise, stream: rows)
    job = replace(JOB, epsilon=3.0, classes=("negative", "positive"))
    for gone in (("train", 2), ("mix", 2)):
        found = play(job, engine=Losing(gone, party=1))
        assert [set(one) for one in found.history] == [{"east", "north", "south"}, {"east", "south"}, {"east", "north", "south"}]  # fmt: skip
        assert found.missing == ("north",)
        # A copy that nobody took has been sent all the same, and is paid for.
        copies = 2 if gone[0] == "train" else 3
        rows = 16 - round(0.25 * 16) - round(0.15 * 12)
        near = {n: job.spent(n, "text", copies) for n in (rows - 1, rows, rows + 1)}
        assert found.sides["north"]["epsilon"] in near.values()


def test_one_party_alone_is_refused():
    with pytest.raises(QuorumError, match="1 parties trained in round 2"):
        play(among={"east": made_side("text", 16, 3), "north": made_side("text", 16, 2)}, engine=Losing(("train", 2), party=1))  # fmt: skip


@pytest.mark.parametrize("step", ["train", "mix"])
def test_a_server_that_asks_for_a_round_again_is_refused(step):
    """The second copy of a round would be a release that the promise does not count."""

    class Repeating(Inline):
        async def run(self, request, positions):
            if request.task.name.endswith(f":{step}") and request.message["round"] == 2:
                request = replace(request, message={**request.message, "round": 1})
            return await super().run(request, positions)

    with pytest.raises(AtollError, match=r"round 1 after .*round 1|copies of round 1 after training in round 2"):
        play(replace(JOB, epsilon=3.0), engine=Repeating())


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf, 3e38, -2e6])
def test_a_peer_with_impossible_weights_is_named(monkeypatch, weight):
    post = Island.post

    def post_other(self, to, letter):
        if self.name == "south" and "values" in letter:
            letter = {**letter, "values": {name: np.full_like(value, weight) for name, value in letter["values"].items()}}  # fmt: skip
        post(self, to, letter)

    monkeypatch.setattr(Island, "post", post_other)
    with pytest.raises(AtollError, match=r"the copy of 'south' has .*not finite or above"):
        play()


def test_a_speech_side_cannot_spoil_the_table_of_the_others(monkeypatch):
    """A share of another form is refused; one of huge numbers gives a table of finite ones."""
    post = Island.post

    def post_huge(self, to, letter):
        post(self, to, {name: value + np.float32(1e37) for name, value in letter.items()} if "sums" in letter else letter)  # fmt: skip

    monkeypatch.setattr(Island, "post", post_huge)
    assert all(0 <= side["f1"] <= 1 for side in play().sides.values())


def test_the_promise_is_that_of_an_independent_accountant():
    pytest.importorskip("dp_accounting")
    job = replace(JOB, epsilon=4.0, rounds=5, iterations=20)
    event, table = job.step_event(600), job.table_plan.event
    assert (event.noise_multiplier, event.sampling, event.count) == (job.noise_multiplier(600), 8 / 600, 20)
    size = (job.size_event, 1)
    for modality, first in (("speech", [size, (table, 1)]), ("text", [size])):
        theirs = epsilon_of((*first, (event, job.rounds)), job.delta, "dp-accounting-rdp")
        assert job.spent(600, modality, job.rounds) == pytest.approx(theirs, rel=1e-6)
        assert theirs <= 4.0 * (1 + 1e-6)
    assert epsilon_of(((table, 1),), job.delta, "dp-accounting-rdp") <= 0.8 * (1 + 1e-6)
    assert epsilon_of((size,), job.delta, "dp-accounting-rdp") <= 0.4 * (1 + 1e-6)


@pytest.mark.every(3)  # each network once, each promise once
@pytest.mark.parametrize("epsilon", [None, 4.0])
@pytest.mark.parametrize("network", [FrameCNN(filters=4), BiGRU(width=4, layers=1)])
def test_silence_empty_texts_and_one_class_at_a_side_train_and_predict(tmp_path, epsilon, network):
    job = replace(JOB, speech=network, text=network, rounds=1, iterations=2, epsilon=epsilon)
    silence = Utterances("speech", [np.zeros((3, 6))] * 8, [[]] * 8, ["negative"] * 8)
    empty = Utterances("text", [[], [""], ["once"], []] * 2, [[]] * 8, ["negative", "positive"] * 4)
    far = made_side("speech", 8, 1)
    far = replace(far, inputs=[frames * 1e3 + 1e9 for frames in far.inputs])
    found = play(job, {"a": silence, "b": empty, "c": far}, results=tmp_path)
    assert set(found.sides) == {"a", "b", "c"}
    for name, rows in (("a", silence), ("b", empty), ("c", far)):
        said = SideModel.of(job, name, tmp_path).predict_proba(rows)
        assert np.isfinite(said).all()
        assert np.allclose(said.sum(1), 1)


def test_one_utterance_is_refused():
    with pytest.raises((DataError, AtollError), match="1 utterances"):
        play(among={"a": made_side("text", 1, 0), "b": made_side("text", 16, 1)})
