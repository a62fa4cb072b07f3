"""Stages on the cut: what the recipient reads is what the stages make of it, both ways, and a foreign encoding is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, MessageError
from atoll.core.message import decode, encode
from atoll.stages import QSGD, ErrorFeedback, LocalGaussian, ProductQuantizer, ScalarQuantizer, TopK
from atoll.vertical import SplitNet, Vertical
from atoll.vertical.split.cut import Cut, CutStages
from tests.support.vertical_toys import as_parties, draw

torch = pytest.importorskip("torch")
SMALL = {"hidden": (8,), "width": 8, "top": (4,), "epochs": 2, "batch": 50}
QUANTIZER = ProductQuantizer(block=2, codewords=8, spread=1.0)


class Wire:
    """A peer to oneself: messages go through the codec, as between organisations."""

    def __init__(self):
        self.messages, self.sizes = [], []

    async def send(self, role, message):
        self.messages.append(encode(message))
        self.sizes.append(len(self.messages[-1]))

    async def recv(self, role):
        found = self.messages.pop(0)
        return decode(found) if isinstance(found, bytes) else found


def cut_of(wire, *stages):
    made = CutStages(tuple(stages), Rng.of(0))
    return Cut(wire, np.dtype(np.float32), {"up": made, "down": made})


@pytest.mark.parametrize("stages", [[TopK(0.25)], [TopK(0.25, per="tensor")], [QSGD(levels=64)], [QUANTIZER]])  # fmt: skip
def test_the_recipient_reads_what_the_stages_make_of_it(stages):
    wire = Wire()
    cut, h = cut_of(wire, *stages), torch.from_numpy(np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32))

    async def pass_over():
        told = await cut.send("top", 3, h, "up")
        return told, await cut.recv("host", 3, (64, 16), "embeddings")

    told, found = asyncio.run(pass_over())
    np.testing.assert_array_equal(told, found)
    assert 0 < np.linalg.norm(found - h.numpy()) < np.linalg.norm(h.numpy())
    assert wire.sizes[0] < 0.6 * h.numpy().nbytes
    assert found.dtype == np.float32


def test_topk_keeps_the_largest_of_a_step():
    wire, h = Wire(), torch.arange(12, dtype=torch.float32).view(4, 3)
    asyncio.run(cut_of(wire, TopK(0.25)).send("top", 0, h, "up"))
    found = asyncio.run(cut_of(wire, TopK(0.25)).recv("host", 0, (4, 3), "embeddings"))
    np.testing.assert_array_equal(found, np.where(h.numpy() > 8, h.numpy(), 0))


def train(**settings):
    parties, _ = as_parties(draw(402, 500))
    return atoll.simulate(Vertical(model=SplitNet(**{**SMALL, **settings})), parties, engine="inline", progress=False)


@pytest.mark.parametrize("shape", ["label", pytest.param("u", marks=pytest.mark.slow)])
def test_a_stage_that_keeps_all_changes_nothing_and_one_that_keeps_little_sends_little(shape):
    plain, whole, few = (train(shape=shape, **more) for more in ({}, {"uplink": [TopK(1.0)], "downlink": [TopK(1.0)]}, {"uplink": [TopK(0.1)], "downlink": [TopK(0.1)]}))  # fmt: skip
    np.testing.assert_array_equal(whole.predictions["federated"], plain.predictions["federated"])
    assert few.cost["bytes"] < 0.8 * plain.cost["bytes"]
    assert (few.predictions["federated"] != plain.predictions["federated"]).any()


def test_fedlite_corrects_the_gradients_of_what_the_codebook_lost():
    plain, corrected = (train(uplink=[QUANTIZER], correction=value) for value in (0.0, 10.0))

    def loss_of_codes(result):
        part = result.replies["host-1"]["half"]["part"]
        h = result.job.model.answer(
            part, np.random.default_rng(0).normal(size=(200, part["bottom"]["layers"]["inputs"]))
        )["cut"]
        stages = CutStages((QUANTIZER,), Rng.of(0))
        again = stages.decode(stages.encode(h, 0), np.zeros_like(h), "h", "me")["cut"]
        return float(np.sum((h - again) ** 2))

    assert loss_of_codes(corrected) < 0.8 * loss_of_codes(plain)


def test_a_foreign_encoding_is_refused():
    stages = CutStages((TopK(0.5),), Rng.of(0))
    values = np.ones((4, 3), np.float32)
    good = stages.encode(values, 0)
    huge = stages.encode(np.ones((400, 3), np.float32), 0)
    for wrong in (huge, None, {}, {"encoded": {}, "fitted": []}, {**good, "fitted": [1]}, {"encoded": {**good["encoded"], "index": "x"}, "fitted": []}):  # fmt: skip
        with pytest.raises(MessageError, match="no embeddings of 'shop' under TopK"):
            stages.decode(wrong, values, "embeddings", "shop")
    books = CutStages((QUANTIZER,), Rng.of(0))
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    told = books.encode(rows, 0)
    for public in ({}, {"books": [], "version": 1}, {"books": [np.zeros((1, 2), np.float32)], "version": 1}, {**told["fitted"][0], "version": 2}):  # fmt: skip
        with pytest.raises(MessageError, match="no embeddings of 'shop' under ProductQuantizer"):
            books.decode({**told, "fitted": [public]}, rows, "embeddings", "shop")


@pytest.mark.parametrize(("stage", "match"), [(ErrorFeedback(TopK(0.1)), "remembers"), (LocalGaussian(bound=1.0, multiplier=1.0), "promises privacy"), (ScalarQuantizer(bits=8), "acts on sums")])  # fmt: skip
def test_stages_that_the_cut_cannot_carry_are_refused(stage, match):
    with pytest.raises(CompositionError, match=match):
        SplitNet(uplink=[stage])
    with pytest.raises(CompositionError, match=match):
        SplitNet(downlink=[stage])
