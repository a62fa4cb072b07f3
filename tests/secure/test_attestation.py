"""A quote vouches for one measurement, one challenge and one root; a sealed block opens at its own place alone."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import LetterError, PolicyError
from atoll.core.requests.island import Secret
from atoll.core.sealing import hpke
from atoll.secure import Attestation, SignedAttestation
from atoll.secure.attestation import SIMULATED_ROOT, open_blocks, root_of, seal_blocks
from atoll.secure.seed_holders import attestation_of

MEASURED, OTHER = hashlib.sha256(b"code").hexdigest(), hashlib.sha256(b"other code").hexdigest()
NOW, BEFORE = hashlib.sha256(b"now").digest(), hashlib.sha256(b"before").digest()
KEY = hashlib.sha256(b"a root").digest()
ABOUT = hashlib.sha256(b"a statement and its plan").digest()


def test_a_quote_is_accepted_for_what_it_says_alone() -> None:
    made = SignedAttestation(MEASURED, root_of(KEY), KEY)
    assert isinstance(made, Attestation)
    assert made.simulated
    quote = made.quote(NOW)
    assert len(quote) == 128
    pinned = SignedAttestation(MEASURED, root_of(KEY))
    pinned.verify(quote, NOW)
    with pytest.raises(PolicyError, match="runs other code"):
        SignedAttestation(OTHER, root_of(KEY)).verify(quote, NOW)
    with pytest.raises(PolicyError, match="an old one"):
        pinned.verify(made.quote(BEFORE), NOW)
    with pytest.raises(PolicyError, match="not signed by the root"):
        SignedAttestation(MEASURED).verify(quote, NOW)
    for altered in (quote[:-1], b"", bytes(128), bytes([quote[0] ^ 1]) + quote[1:], OTHER.encode()[:32] + quote[32:]):
        with pytest.raises(PolicyError, match="not signed by the root"):
            pinned.verify(altered, NOW)


def test_the_simulated_root_is_known_to_everybody_and_its_key_is_not_shown() -> None:
    made = attestation_of({"name": "SignedAttestation", "settings": {"measurement": MEASURED}})
    made.verify(SignedAttestation(MEASURED).quote(NOW), NOW)
    assert isinstance(made, SignedAttestation)
    assert root_of(made.key) == SIMULATED_ROOT
    assert "key" not in repr(SignedAttestation(MEASURED, root_of(KEY), KEY))


def sealed(tables: list[bytes], owner: str = "north", about: bytes = ABOUT) -> tuple[bytes, dict[str, Any]]:
    key = Secret(7).bytes(hpke.KEY)
    return key, seal_blocks(Secret(1), hpke.public_of(key), about, owner, tables)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 3))
def test_blocks_open_to_the_same_tables(tables: list[bytes], blocks: int) -> None:
    tables = [*tables, bytes(range(256)) * 256 * blocks]
    key, letter = sealed(tables)
    assert open_blocks(key, ABOUT, "north", letter) == tables
    assert [len(one) for one in letter["tables"]] == [*[1] * (len(tables) - 1), max(1, blocks)]


LARGE = [bytes(200_000), b"a", b"b"]


def altered(kind: str, letter: dict[str, Any]) -> None:
    tables = letter["tables"]
    if kind == "swapped":
        tables[0][0], tables[0][1] = tables[0][1], tables[0][0]
    elif kind == "swapped tables":
        tables[1], tables[2] = tables[2], tables[1]
    elif kind == "replayed":
        tables[0][1] = tables[0][0]
    elif kind == "dropped":
        tables[0].pop()
    elif kind == "altered":
        tables[2][0] = bytes([tables[2][0][0] ^ 1]) + tables[2][0][1:]


@pytest.mark.parametrize("kind", ["swapped", "swapped tables", "replayed", "dropped", "altered"])
def test_a_block_at_another_place_is_a_named_error(kind: str) -> None:
    key, letter = sealed(LARGE)
    altered(kind, letter)
    with pytest.raises(LetterError, match=r"block \d of table \d of north does not open: it was altered, replayed, or swapped"):  # fmt: skip
        open_blocks(key, ABOUT, "north", letter)


@pytest.mark.parametrize(
    ("owner", "about"), [("south", ABOUT), ("north", hashlib.sha256(b"another plan").digest())], ids=["owner", "plan"]
)
def test_a_block_of_another_owner_or_statement_is_a_named_error(owner: str, about: bytes) -> None:
    key, letter = sealed(LARGE)
    with pytest.raises(LetterError, match=f"block 0 of table 0 of {owner} does not open"):
        open_blocks(key, about, owner, letter)
    with pytest.raises(LetterError, match="block 0 of table 0"):
        open_blocks(Secret(8).bytes(32), ABOUT, "north", letter)


@pytest.mark.parametrize("letter", [None, {}, {"enc": b"", "sender": b"", "tables": []}, {"enc": bytes(32), "sender": bytes(32), "tables": [[b""]]}])  # fmt: skip
def test_what_is_no_letter_is_a_named_error(letter: Any) -> None:
    with pytest.raises(LetterError, match="what north sent are no sealed blocks"):
        open_blocks(Secret(7).bytes(32), ABOUT, "north", copy.deepcopy(letter))
