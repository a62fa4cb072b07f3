"""Measures sums of ciphertexts with whole weights, as encrypted linear models take them, against one power a number.

    python benchmarks/linear.py                 # 2,000 ciphertexts under a key of 2,048 bits, weights of 42 bits

Both run in this process, one after the other, and the time is the processor's. `weighted_sums` is Pippenger's method of digits of 8 bits; the other is ``prod c_i^{v_i}`` by gmpy2's
``powmod``, as a textbook has it.
"""

from __future__ import annotations

import argparse
import time


def main() -> None:
    """Measure and print."""
    import numpy as np
    from atoll.core.requests.island import Secret
    from atoll.secure.encrypted import KeyOwner, Paillier, SealedVector
    from gmpy2 import invert, mpz, powmod

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--bits", type=int, default=42, help="bits of a weight")
    args = parser.parse_args()
    cipher, rng = Paillier(), np.random.default_rng(0)
    owner = KeyOwner(cipher, Secret(0), short=True)
    vector = SealedVector(cipher, owner.public, owner.encrypt(rng.integers(-(2**40), 2**40, args.rows).tolist()))
    weights = rng.integers(-(2**args.bits), 2**args.bits, (args.rows, 1))
    began = time.process_time()
    [ours] = vector.weighted_sums(weights)
    middle = time.process_time()
    square, theirs = vector.key.square, mpz(1)
    for c, w in zip(vector.numbers, weights[:, 0].tolist(), strict=True):
        theirs = theirs * powmod(c if w >= 0 else invert(c, square), abs(w), square) % square
    ended = time.process_time()
    assert ours == theirs, "both are the same ciphertext"
    fast, slow = middle - began, ended - middle
    print(f"{args.rows:,} ciphertexts, weights of {args.bits} bits: {1e6 * fast / args.rows:.1f} us a row, by powers {1e6 * slow / args.rows:.1f} us: {slow / fast:.1f} times faster")  # fmt: skip


if __name__ == "__main__":
    main()
