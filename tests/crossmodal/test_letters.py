"""What a server or a peer may not do to letters: send one of another round, or one that holds more than the shared network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import DataError, LetterError, TaskError
from atoll.core.requests.island import Island
from atoll.crossmodal import Crossmodal, FrameCNN
from atoll.engines import Inline
from tests.crossmodal.helpers import made_side

pytest.importorskip("torch")

JOB = Crossmodal(text=FrameCNN(filters=4, widths=(1,)), rounds=2, iterations=1, batch=8, hidden=4, width=4, label="")
MIX = "atoll.crossmodal.parties:mix"


def play(**options):
    parties = {"a": made_side("text", 24, 1), "b": made_side("text", 24, 2)}
    return atoll.simulate(JOB, parties, **{"engine": "inline", "progress": False, **options})


class Replaying(Inline):
    """A server that delivers the letters of the first round in the second."""

    first = None

    async def run(self, request, positions):
        if request.task.name == MIX:
            self.first = self.first or request.mail
            request = replace(request, mail=self.first)
        return await super().run(request, positions)


def test_a_letter_of_another_round_does_not_open():
    with pytest.raises((LetterError, TaskError), match=r"it does not open: .*letter of b to a; .*mix/2 at a"):
        play(engine=Replaying(), sealing="real")


@pytest.mark.parametrize("strange", ["own.last.weight", "words", "labels"])
def test_a_peer_that_sends_more_is_named(monkeypatch, strange):
    """A peer with another program posts what must stay: the others refuse its letter, and say whose it is."""
    post = Island.post

    def post_more(self, to, letter):
        if self.name == "b" and strange.startswith("own."):
            letter = {**letter, "values": {**letter["values"], strange: np.ones(2, np.float32)}}
        elif self.name == "b":
            letter = {**letter, strange: np.ones(2, np.float32)}
        post(self, to, letter)

    monkeypatch.setattr(Island, "post", post_more)
    with pytest.raises((DataError, TaskError), match=f"copy of 'b' .*{strange}"):
        play()
