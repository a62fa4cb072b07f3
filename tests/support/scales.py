"""Scales: what the messages of a protocol weigh when they are really encoded, counted apart from the meters of the waist."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from inspect import isawaitable
from unittest import mock

import numpy as np

from atoll.core import message as M
from atoll.core.federation.delivery import Delivery
from atoll.core.requests.request import wire_form
from atoll.core.requests.results import Free
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import live


class _Weighing(Inline):
    """The inline engine, with a look at every reply that leaves a party."""

    def __init__(self, weight):
        super().__init__()
        self._weight = weight

    async def run(self, request, positions):
        replies = await super().run(request, positions)
        for reply in replies:
            letters = sum(len(letter.encode()) for letter in reply.mail.values())
            self._weight[reply.party, "up"] += len(M.encode(wire_form(reply.value))) + letters
        return replies

    async def fold(self, request, positions):
        assert not request.uplink, "what stages encode is weighed by tests/core/test_every_byte.py"

        async def seen(island, message, **args):
            value = request.task.run(island, message, **args)
            value = await value if isawaitable(value) else value
            self._weight[island.party.position, "up"] += len(M.encode(wire_form(value)))
            return value

        return await super().fold(replace(request, task=replace(request.task, run=seen)), positions)


def _sent(request):
    """The parts of a request that every party is sent."""
    inner = () if request.wraps is None else _sent(request.wraps)
    return (request.message, *([dict(request.task.args)] if request.task.args else []), *request.public, *inner)


def weighed(program, population, cost=None, **more):
    """Bytes by position and way: of every request to everyone who was asked, and of every reply; letters are encrypted for real."""
    weight, send = Counter(), Delivery.send

    def noted(traffic, request, parties, *args, **terms):
        message = sum(len(M.encode(part)) for part in _sent(request))
        for party in parties:
            letters = request.mail.box(party.name).values() if request.mail else ()
            weight[party.position, "down"] += message + sum(len(letter.encode()) for letter in letters)
            weight["letters"] += sum(len(letter.encode()) for letter in letters)
        return send(traffic, request, parties, *args, **terms)

    with mock.patch.object(Delivery, "send", noted):
        live(World(population, _Weighing(weight), cost=cost or Free(), sealing="real", **more), program)
    return weight


def assert_true_bytes(life, program, population, cost=None, **more):
    """What a life has metered is what its messages weigh: on every link, in both directions, and what the server only passed on."""
    weight = weighed(program, population, cost, **more)
    for way in ("down", "up"):
        link = life.links.get(f"main:server:{way}", {"positions": np.zeros(0), "bytes": np.zeros(0)})
        metered = dict(zip(link["positions"].tolist(), link["bytes"].tolist(), strict=True))
        expected = {key[0]: n for key, n in weight.items() if key[1] == way}
        assert metered == expected, way
        assert life.bytes[f"bytes_{way}"] == sum(expected.values()) > 0
    assert life.bytes["bytes_relayed"] == weight["letters"], "relayed"
    assert life.bytes["bytes_between"] == 0
