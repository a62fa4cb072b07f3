"""Secure indexing: sums by key over parties that hold different keys; the server sees the union, never who holds what.

Each party writes its keys into hashed slots of a histogram (value, count, key, key squared) and masks it with seeds it shares with every other
party. A slot holds one key exactly when count * sum(key^2) = sum(key)^2 (Cauchy-Schwarz); on a collision the round is repeated with other hashes.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.rng import mix64
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from tests.support.masks import mask

SLOTS = 64


def slots(keys, salt):
    return (mix64(np.asarray(keys, dtype=np.uint64) ^ np.uint64(salt)) % SLOTS).astype(np.int64)


@task
def agree(island, names):
    """A seed for every later party; the first party also chooses the salt, which the server does not learn."""
    salt = island.secret.bytes(8) if island.name == names[0] else b""
    others = [name for name in names if name != island.name]
    own = {name: island.secret.bytes(8) if name > island.name else b"" for name in others}
    for name, seed in own.items():
        island.post(name, {"seed": seed, "salt": salt})
    island.state = {"seeds": own, "salt": salt}


@task
def histogram(island, names):
    keys, values = np.array(list(island.data)), np.array(list(island.data.values()))
    salt = island.state["salt"] or island.inbox[names[0]]["salt"]
    table = np.zeros((SLOTS, 4), dtype=np.int64)
    np.add.at(table, slots(keys, int.from_bytes(salt)), np.stack([values, values * 0 + 1, keys, keys**2], axis=1))
    total = table.view(np.uint64)
    for name, letter in island.inbox.items():
        seed = island.state["seeds"][name] if name > island.name else letter["seed"]
        words = mask(seed, table.shape)
        total = total + words if name > island.name else total - words
    return total


async def keyed_sums(fed):
    state = await fed.restore({"tries": 0, "sums": None, "seen": []})
    names = fed.parties.names
    while state["sums"] is None:
        first = await fed.exchange(fed.parties, agree, names)
        second = await fed.exchange(fed.parties, histogram, names, mail=first.mail)
        table = sum(second.values, np.uint64(0)).view(np.int64)
        table = table[table[:, 1] > 0]
        value, count, key, square = table.T
        clean = bool((count * square == key**2).all())
        order = np.argsort(key)
        sums = {str(k): v for k, v in zip((key // count)[order].tolist(), value[order].tolist(), strict=True)}
        state = {"tries": state["tries"] + 1, "sums": sums if clean else None}
        await fed.checkpoint(state)
    return state["sums"]


def test_the_server_gets_the_sums_by_key(survive):
    data = [{7: 1, 1000: 5, 12: 2}, {12: 10, 99: -3}, {5: 4, 7: 8}, {1000: 1}]
    # Collisions depend on the secret salt: a seed lets every life take the same number of tries.
    life = survive(keyed_sums, Community(data), secret_seed=3)
    assert life.result == {str(k): sum(one.get(k, 0) for one in data) for k in sorted(set().union(*data))}


@pytest.mark.parametrize("salt", range(4))
def test_a_slot_with_two_keys_is_noticed(salt):
    keys = np.arange(300)
    slot = slots(keys, salt)
    count = np.bincount(slot, minlength=SLOTS)
    total, square = np.bincount(slot, keys, SLOTS), np.bincount(slot, keys**2, SLOTS)
    np.testing.assert_array_equal(count * square == total**2, count <= 1)
