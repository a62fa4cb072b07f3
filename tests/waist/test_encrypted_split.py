"""The best split of a tree node over two parties' features, with encrypted gradients (SecureBoost, Cheng et al. 2021; Paillier 1999)."""

from __future__ import annotations

import math

import numpy as np

from atoll.core.cohort import Community
from atoll.core.request import Mail
from atoll.core.task import task

SCALE, BINS, LAMBDA = 10**6, 4, 1.0


def probably_prime(n, entropy):
    """Miller-Rabin, 20 rounds."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(20):
        x = pow(entropy.integer(n - 3) + 2, odd, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


def prime(entropy):
    while not probably_prime(n := entropy.integer(2**63) | 2**63 | 1, entropy):
        pass
    return n


def pack(numbers):
    return [x.to_bytes(32) for x in numbers]


def best(histograms):
    """``(gain, feature, bin)`` of the best split; a histogram holds sums of gradients and hessians by bin."""
    total_g, total_h = (sum(column) for column in next(iter(histograms.values())))
    splits = []
    for feature, (g, h) in sorted(histograms.items()):
        for cut in range(1, BINS):
            gl, hl = sum(g[:cut]), sum(h[:cut])
            gain = gl**2 / (hl + LAMBDA) + (total_g - gl) ** 2 / (total_h - hl + LAMBDA)
            splits.append((round(gain - total_g**2 / (total_h + LAMBDA), 9), feature, cut))
    return max(splits, key=lambda split: (split[0], split[1], -split[2]))


@task
def encrypt(island, hosts):
    """The guest's gradients under its own key: Enc(m) = (1 + n)^m r^n mod n^2."""
    p, q = prime(island.secret), prime(island.secret)
    n, (g, h) = p * q, island.data["gradients"]
    for host in hosts:
        rows = [
            [pow(1 + n, int(m) % n, n * n) * pow(island.secret.integer(n - 1) + 1, n, n * n) % (n * n) for m in c]
            for c in (g, h)
        ]
        island.post(host, {"n": n.to_bytes(32), "rows": [pack(column) for column in rows]})
    island.state = {"primes": pack([p, q])}


@task
def add_up(island, guest):
    """The host adds ciphertexts by bin, which multiplies them; it learns nothing."""
    letter = island.inbox[guest]
    square = int.from_bytes(letter["n"]) ** 2
    columns = [[int.from_bytes(c) for c in column] for column in letter["rows"]]
    bins = island.data["bins"]
    sums = [
        [math.prod([1, *(c for c, b in zip(column, bins, strict=True) if b == k)]) % square for k in range(BINS)]
        for column in columns
    ]
    island.post(guest, [pack(column) for column in sums])


@task
def choose(island, message):
    p, q = (int.from_bytes(x) for x in island.state["primes"])
    n, phi = p * q, (p - 1) * (q - 1)

    def decrypt(c):
        m = (pow(int.from_bytes(c), phi, n * n) - 1) // n * pow(phi, -1, n) % n
        return (m - n if m > n // 2 else m) / SCALE

    theirs = {name: [[decrypt(c) for c in column] for column in sums] for name, sums in island.inbox.items()}
    mine = [
        [column[island.data["bins"] == k].sum() / SCALE for k in range(BINS)] for column in island.data["gradients"]
    ]
    return list(best({island.name: mine, **theirs}))


async def find_split(fed):
    guest, hosts = fed.parties[:1], fed.parties[1:]
    state = await fed.restore(None)
    if state is None:
        sealed = await fed.exchange(guest, encrypt, hosts.names)
        sums = await fed.exchange(hosts, add_up, guest.names[0], mail=sealed.mail)
        state = {"mail": sums.mail.sealed()}
        await fed.checkpoint(state)
    return (await fed.exchange(guest, choose, mail=Mail(state["mail"]))).values[0]


def test_the_split_is_that_of_the_plain_data(survive):
    rng = np.random.default_rng(0)
    g, h = rng.normal(size=30), rng.uniform(0.1, 1, size=30)
    bins = {
        name: np.clip(np.digitize(g * w + rng.normal(size=30), [-1, 0, 1]), 0, 3)
        for name, w in [("guest", 0.1), ("host-1", 0.5), ("host-2", 2)]
    }
    fixed = [np.round(g * SCALE).astype(np.int64), np.round(h * SCALE).astype(np.int64)]
    data = {name: {"bins": b} for name, b in bins.items()}
    data["guest"]["gradients"] = fixed
    life = survive(find_split, Community(data), points=10)
    plain = {name: [[c[b == k].sum() / SCALE for k in range(BINS)] for c in fixed] for name, b in bins.items()}
    assert life.result == list(best(plain))
    assert life.result[1] == "host-2"
