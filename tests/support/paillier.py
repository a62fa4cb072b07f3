"""Additive encryption (Paillier 1999), for the miniatures: numbers travel as 32 bytes."""

from __future__ import annotations


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
    """A prime of 64 bits."""
    while not probably_prime(n := entropy.integer(2**63) | 2**63 | 1, entropy):
        pass
    return n


def encrypt(m, n, entropy):
    """Enc(m) = (1 + n)^m r^n mod n^2, where (1 + n)^m = 1 + m n: the product of two ciphertexts is one of the sum."""
    return (1 + m % n * n) * pow(entropy.integer(n - 1) + 1, n, n * n) % (n * n)


def decrypt(c, p, q):
    """The number in a ciphertext, negative ones in the upper half."""
    n, phi = p * q, (p - 1) * (q - 1)
    m = (pow(c, phi, n * n) - 1) // n * pow(phi, -1, n) % n
    return m - n if m > n // 2 else m


def pack(numbers):
    """As bytes."""
    return [x.to_bytes(32) for x in numbers]


def unpack(packed):
    """As numbers."""
    return [int.from_bytes(x) for x in packed]
