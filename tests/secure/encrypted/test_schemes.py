"""Schemes of additive encryption: sums are exact, other implementations agree, and what is no ciphertext is refused."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.errors import ConfigError, DataError, MissingExtraError
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import BFV, CKKS, BatchCrypt, Digits, Paillier, scheme_named
from atoll.secure.encrypted.paillier import PrivateKey, PublicKey, pack, public_key, unpack
from atoll.secure.encrypted.scheme import from_slots, slot_count, to_slots

pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")


class One:
    """A scheme for one array a ciphertext."""

    def __init__(self, scheme):
        self.scheme = scheme

    def __getattr__(self, name):
        return getattr(self.scheme, name)

    def encrypt(self, public, numbers, form, secret):
        return self.scheme.encrypt(public, [numbers], [form], secret)

    def add(self, public, sealed, form):
        return self.scheme.add(public, sealed, [form])

    def decrypt(self, private, sealed, form):
        return self.scheme.decrypt(private, sealed, [form])[0]

    def check(self, form):
        self.scheme.check([form])


SMALL = {"key_bits": 256, "insecure": True}
SCHEMES = [One(each) for each in (BFV(), BFV(plain_bits=56), CKKS(), Paillier(**SMALL), BatchCrypt(**SMALL))]
FIVE = dict(zip(("bfv", "wide", "ckks", "paillier", "batchcrypt"), SCHEMES, strict=True))
NAMES = ["bfv", "bfv wide", "ckks", "paillier", "batchcrypt"]


@pytest.fixture(scope="module")
def keys():
    return {scheme: scheme.make_keys(Secret()) for scheme in SCHEMES}


def drawn(rng, form, parties):
    """Numbers of some parties, the largest and the smallest among them."""
    numbers = rng.integers(0, 2**form.bits, (parties, form.size), dtype=np.uint64)
    numbers[:, :1], numbers[:, -1:] = 2**form.bits - 1, 0
    return numbers


# ---------------------------------------------------------------------- the law


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
@settings(max_examples=12)
@given(data=st.data())
def test_the_sum_of_ciphertexts_is_the_sum_of_the_numbers_to_the_bit(scheme, keys, data):
    parties = data.draw(st.integers(1, 6))
    most = data.draw(st.sampled_from([parties, 100, 1000]))
    widest = 64 - (most - 1).bit_length() - (12 if scheme.name == "batchcrypt" else 0)
    form = Digits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, widest)), most)
    numbers = drawn(np.random.default_rng(data.draw(st.integers(0, 99))), form, parties)
    public, private = keys[scheme]
    sealed = [scheme.encrypt(public, row, form, Secret()) for row in numbers]
    found = scheme.decrypt(private, scheme.add(public, sealed, form), form)
    assert np.array_equal(found, numbers.sum(axis=0, dtype=np.uint64))


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_the_largest_cohort_with_the_largest_numbers_does_not_carry(scheme, keys):
    form, (public, private) = Digits(9, 12, 128), keys[scheme]
    sealed = [scheme.encrypt(public, np.full(9, 2**12 - 1, dtype=np.uint64), form, Secret()) for _ in range(128)]
    assert scheme.decrypt(private, scheme.add(public, sealed, form), form).tolist() == [128 * (2**12 - 1)] * 9


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_keys_and_ciphertexts_travel_as_messages(scheme, keys):
    form = Digits(5, 8, 3)
    public, private = (M.decode(M.encode(key)) for key in keys[scheme])
    sealed = M.decode(M.encode(scheme.encrypt(public, np.arange(5, dtype=np.uint64), form, Secret())))
    assert scheme.decrypt(private, scheme.add(public, [sealed], form), form).tolist() == [0, 1, 2, 3, 4]


def test_several_blocks_of_slots_are_one_ciphertext(keys):
    form, rng = Digits(10_000, 13, 200), np.random.default_rng(0)
    scheme = FIVE["bfv"]
    numbers, (public, private) = drawn(rng, form, 3), keys[scheme]
    sealed = [scheme.encrypt(public, row, form, Secret()) for row in numbers]
    assert np.array_equal(scheme.decrypt(private, scheme.add(public, sealed, form), form), numbers.sum(axis=0))


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_one_ciphertext_holds_arrays_of_several_forms(scheme, keys):
    form, (public, private) = (
        [Digits(5, 50, 9), Digits(300, 7, 9), Digits(1, 60, 9)][: 2 + (scheme.name != "batchcrypt")],
        keys[scheme],
    )
    rows = [[drawn(np.random.default_rng(i), each, 1)[0] for each in form] for i in range(3)]
    sealed = [scheme.scheme.encrypt(public, row, form, Secret()) for row in rows]
    found = scheme.scheme.decrypt(private, scheme.scheme.add(public, sealed, form), form)
    for got, of in zip(found, zip(*rows, strict=True), strict=True):
        assert np.array_equal(got, np.sum(of, axis=0, dtype=np.uint64))


# ---------------------------------------------------------------------- packing


@given(st.integers(1, 64), st.integers(0, 50), st.integers(0, 99))
def test_packing_in_large_numbers_equals_shifts_of_whole_numbers(width, size, seed):
    numbers = np.random.default_rng(seed).integers(0, 2**64 - 1, size, dtype=np.uint64, endpoint=True)
    numbers &= np.uint64(2**width - 1)
    per = (256 - 1) // width
    rows = [numbers[at : at + per].tolist() for at in range(0, size, per)]
    assert pack(numbers, width, 256) == [sum(x << (j * width) for j, x in enumerate(row)) for row in rows]
    assert np.array_equal(unpack(pack(numbers, width, 256), size, width, 256), numbers)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(9, 60), st.integers(1, 6), st.integers(0, 99))
def test_sums_of_slots_are_slots_of_sums(bits, parties, capacity, count, seed):
    form = Digits(7, bits, parties)
    count = min(count, parties)
    numbers = drawn(np.random.default_rng(seed), form, count)
    slots = [to_slots(row, form, capacity) for row in numbers]
    total = sum(slots, np.zeros_like(slots[0]))
    assert len(total) == slot_count(form, capacity)
    assert int(total.max()) < 2**capacity
    assert np.array_equal(from_slots(total, form, capacity), numbers.sum(axis=0))


def test_two_numbers_share_a_slot_and_a_wide_one_takes_two():
    assert slot_count(Digits(10, 14, 100), 42) == 5
    assert slot_count(Digits(10, 15, 100), 42) == 10
    assert slot_count(Digits(10, 40, 100), 42) == 20


@pytest.mark.parametrize(
    ("width", "plain"), [(8, 43), (14, 43), (21, 43), (22, 56), (27, 56), (28, 43), (42, 43), (64, 43)]
)
def test_the_fitting_plaintext_takes_fewer_bytes(width, plain):
    assert BFV.fitting(width) == BFV(plain_bits=plain)


def test_batchcrypt_fields_are_wider_by_the_guard_bits_and_one(keys):
    form = Digits(1, 14, 100)
    assert BatchCrypt(**SMALL).layout(form) == (2, form.width + form.guard + 1)
    assert Paillier(**SMALL).layout(form) == (1, form.width)


def test_batchcrypt_refuses_a_sum_that_overflowed(keys):
    scheme, form = FIVE["batchcrypt"], Digits(3, 8, 4)
    public, private = keys[scheme]
    sealed = scheme.encrypt(public, np.array([255, 0, 128], dtype=np.uint64), form, Secret())
    with pytest.raises(DataError, match="of 9 parties"):
        scheme.decrypt(private, scheme.add(public, [sealed] * 9, form), form)


# ---------------------------------------------------------------------- Paillier beside others

# Made by python-paillier 1.5.0 (`raw_encrypt`, other noise than ours).
P, Q = 0xC963CFE0AFAE5A3BB9096A04E7D800BB, 0xE6B563B1E794EE14E1454C40C439F37B
OTHERS = [
    (0, "5f7fc4f6b27c5c2f7e28b40ebdceb6b7f2fedc3dca06658d926a831e2ff4dc3cb2d2da409905661db52dd11fe60da6305ab6d3e5937adb29e8a7061ad0d4935b"),
    (1, "6cd17e0046ddf0ee66992cb51e0f1c0c337973034c10c3cab4bee9ef973f43170e31e9281e11906b93a441eed432953e4ce99b7ac5a3b41d19606e8d28b87107"),
    (123456789, "48b49e005c58fca978afae9889c38c61500da597b08982107600e1b4f9acd575e9f26b95cb8c044ce9f91b38e5c95ce510b52a68da2d7214b86e7b93807b19ed"),
    (P * Q - 1, "7cd164b836b7b68864d8becc33feca9d02c89119c84ca066903a96986ff438b737efb3e691393ea435f6c4327da01464dd63f630d762072e3dadb72c9b6c39a8"),
    (2**200 + 7, "49e5671b4216cbd1f6d69de83b14ef24fd725328c1ecf38895c1bfcfb6ca9375c7e2c82a676d6a18fab62bab640c6508bbb00441282381ef7d2fb11d552a3acb"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "sealed"), OTHERS, ids=["0", "1", "small", "n - 1", "large"])
def test_ciphertexts_of_another_library_decrypt(number, sealed):
    assert PrivateKey(P, Q).decrypt(int(sealed, 16)) == number


def textbook(c, p, q):
    """Paillier 1999, section 4, with Carmichael's function and no shortcut."""
    n, lcm = p * q, (p - 1) * (q - 1)
    return (pow(c, lcm, n * n) - 1) // n * pow((pow(1 + n, lcm, n * n) - 1) // n, -1, n) % n


@pytest.mark.parametrize("number", [number for number, _ in OTHERS])
def test_our_ciphertexts_decrypt_by_the_textbook(number):
    n = P * Q
    key = PublicKey(n, pow(-9 % n, n, n * n))
    sealed = int(key.encrypt(number, Secret()))
    assert textbook(sealed, P, Q) == number
    assert sealed != int(key.encrypt(number, Secret()))


def test_the_table_of_powers_gives_the_power():
    n = P * Q
    key = PublicKey(n, pow(-9 % n, n, n * n))
    secret = bytes(range(16))  # the exponent, lowest byte first
    fixed = type("Fixed", (), {"bytes": lambda self, count: secret[:count]})()
    exponent = int.from_bytes(secret, "little")
    assert int(key.encrypt(5, fixed)) == (1 + 5 * n) * pow(int(key.h), exponent, n * n) % (n * n)


def test_a_key_of_2048_bits_has_2048_bits():
    scheme = One(Paillier())
    public, private = scheme.make_keys(Secret())
    key, form = public_key(bytes(public["n"]), bytes(public["h"])), Digits(100, 16, 8)
    assert key.bits == 2048
    assert key.bytes == 512
    sealed = scheme.encrypt(public, np.arange(100, dtype=np.uint64), form, Secret())
    assert sealed.size == 512  # 107 sums of 19 bits
    assert scheme.decrypt(private, sealed, form).tolist() == list(range(100))


# ---------------------------------------------------------------------- randomness


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_ciphertexts_of_equal_numbers_differ_and_those_of_a_seeded_secret_repeat(scheme, keys):
    form, (public, _) = Digits(9000, 8, 3), keys[scheme]
    form = form if scheme.name in ("bfv", "ckks") else Digits(60, 8, 3)
    once, again = (scheme.encrypt(public, np.zeros(form.size, np.uint64), form, Secret()) for _ in range(2))
    assert not np.array_equal(once, again)
    seeded = [scheme.encrypt(public, np.zeros(form.size, np.uint64), form, Secret(7)) for _ in range(2)]
    assert np.array_equal(*seeded)


@pytest.mark.parametrize("scheme", [FIVE["bfv"], FIVE["ckks"]], ids=["bfv", "ckks"])
def test_blocks_of_one_seeded_ciphertext_have_other_randomness(scheme, keys):
    """A SEAL context with a seed gives each ciphertext the same numbers, and the difference of two blocks would be that of their plaintexts."""
    from atoll.secure.encrypted.bfv import split

    per = scheme.slots * (scheme.capacity // 9)
    pieces = split(scheme.encrypt(keys[scheme][0], np.zeros(2 * per, np.uint64), Digits(2 * per, 8, 2), Secret(7)))
    assert len(pieces) == 2
    assert pieces[0] != pieces[1]


# ---------------------------------------------------------------------- refusals


def test_every_scheme_has_a_name():
    assert [scheme_named(name).name for name in ("bfv", "ckks", "paillier", "batchcrypt")] == [
        "bfv", "ckks", "paillier", "batchcrypt",
    ]  # fmt: skip
    assert scheme_named(BFV(plain_bits=30)) == BFV(plain_bits=30)
    with pytest.raises(ConfigError, match=r"rsa.*bfv, ckks"):
        scheme_named("rsa")


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_what_is_no_ciphertext_is_refused(scheme, keys):
    form, (public, private) = Digits(4, 8, 3), keys[scheme]
    sealed = scheme.encrypt(public, np.arange(4, dtype=np.uint64), form, Secret())
    for wrong in (
        sealed[:-1],
        sealed[:0],
        np.concatenate([sealed, sealed]),
        np.zeros_like(sealed),
        np.zeros(3, np.uint8),
    ):
        with pytest.raises(DataError, match="ciphertext"):
            scheme.add(public, [sealed, wrong], form)
        with pytest.raises(DataError, match="ciphertext"):
            scheme.decrypt(private, wrong, form)
    with pytest.raises(DataError, match="no ciphertext"):
        scheme.add(public, [], form)


@pytest.mark.parametrize("scheme", SCHEMES[3:], ids=NAMES[3:])
def test_an_altered_ciphertext_is_refused_or_gives_other_numbers(scheme, keys):
    """In BFV and CKKS the low bits of a ciphertext are noise, and altering them alters nothing."""
    form, (public, private) = Digits(4, 8, 3), keys[scheme]
    sealed = scheme.encrypt(public, np.arange(4, dtype=np.uint64), form, Secret()).copy()
    sealed[len(sealed) // 2] ^= 1
    try:
        found = scheme.decrypt(private, scheme.add(public, [sealed], form), form)
    except DataError:
        return
    assert found.tolist() != [0, 1, 2, 3]


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_keys_that_do_not_fit_are_refused(scheme, keys):
    form, (public, private) = Digits(4, 8, 3), keys[scheme]
    sealed = scheme.encrypt(public, np.arange(4, dtype=np.uint64), form, Secret())
    other = next(each for each in SCHEMES if each.name != scheme.name)
    for key in (private, keys[other][0], None, {"scheme": scheme.name}):
        with pytest.raises(DataError, match="a key of"):
            scheme.encrypt(key, np.arange(4, dtype=np.uint64), form, Secret())
    with pytest.raises(DataError, match="a key of"):
        scheme.decrypt(public, sealed, form)


@pytest.mark.parametrize("scheme", SCHEMES, ids=NAMES)
def test_numbers_that_do_not_fit_the_form_are_refused(scheme, keys):
    public, _ = keys[scheme]
    for numbers in (np.array([256], np.uint64), np.zeros(2, np.uint64)):
        with pytest.raises(DataError, match="for 1 numbers of 8 bits"):
            scheme.encrypt(public, numbers, Digits(1, 8, 3), Secret())


def test_forms_and_schemes_refuse_what_cannot_work(keys):
    with pytest.raises(ConfigError, match="at most 64 bits"):
        Digits(1, 60, 100)
    with pytest.raises(ConfigError, match="2048 or 3072"):
        Paillier(key_bits=1024)
    with pytest.raises(ConfigError, match="20 to 56"):
        BFV(plain_bits=57)
    with pytest.raises(ConfigError, match="the noise allows"):
        BFV(plain_bits=56).check([Digits(1, 8, 50_000)])
    with pytest.raises(ConfigError, match="scale_bits"):
        CKKS().check([Digits(1, 8, 10_000)])
    with pytest.raises(ConfigError, match="before the point"):
        CKKS(scale_bits=55)
    with pytest.raises(ConfigError, match="fewer bits a number"):
        BatchCrypt(**SMALL).check([Digits(1, 58, 64)])
    with pytest.raises(ConfigError, match="longer key"):
        pack(np.zeros(1, np.uint64), 256, 256)


@pytest.mark.parametrize(("scheme", "library"), [("bfv", "tenseal"), ("ckks", "tenseal"), ("paillier", "gmpy2")])
def test_a_missing_library_is_named(scheme, library, monkeypatch):
    found = builtins.__import__

    def without(name, *args, **more):
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return found(name, *args, **more)

    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(MissingExtraError, match=rf"{library}.*atoll\[secure\]"):
        scheme_named(scheme).require()
