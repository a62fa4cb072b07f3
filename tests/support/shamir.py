"""Secret sharing over a prime field (Shamir 1979), for the miniatures: shares of integers as 16 bytes."""

from __future__ import annotations

PRIME = 2**127 - 1


def split(secret, names, threshold, entropy):
    """One share for each name; any ``threshold`` of them give the secret, fewer give nothing."""
    line = [secret % PRIME, *(entropy.integer(PRIME) for _ in range(threshold - 1))]
    points = enumerate(sorted(names), 1)
    return {name: (sum(c * pow(x, k, PRIME) for k, c in enumerate(line)) % PRIME).to_bytes(16) for x, name in points}


def join(shares, names):
    """The secret from ``{name: share}``: the polynomial's value at 0."""
    place = {name: x for x, name in enumerate(sorted(names), 1)}
    total = 0
    for name, share in shares.items():
        term = int.from_bytes(share)
        for other in shares:
            if other != name:
                term = term * place[other] * pow(place[other] - place[name], -1, PRIME) % PRIME
        total += term
    return total % PRIME
