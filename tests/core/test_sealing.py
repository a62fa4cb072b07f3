"""Letters: only the recipient reads, only the sender can have written, and a letter is good for one request."""

from __future__ import annotations

import stat
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.errors import CheckpointError, ConfigError, LetterError, MissingExtraError, PolicyError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import Policy
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.core.sealing import (
    DerivedKeys,
    Letter,
    Letterbox,
    RealSealing,
    Record,
    VirtualSealing,
    hash_parts,
    hash_tree,
    hpke,
)
from atoll.core.sealing import record as record_module
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing.strategies import messages

SECRET = "nobody but the recipient reads this"

# ---------------------------------------------------------------------- the cryptography


def test_known_answer_of_rfc_9180():
    """Appendix A.2.3: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, mode_auth, message 0."""
    recipient = bytes.fromhex("3ca22a6d1cda1bb9480949ec5329d3bf0b080ca4c45879c95eddb55c70b80b82")
    sender = bytes.fromhex("f0f4f9e96c54aeed3f323de8534fffd7e0577e4ce269896716bcb95643c8712b")
    enc = bytes.fromhex("f7674cc8cd7baa5872d1f33dbaffe3314239f6197ddf5ded1746760bfc847e0e")
    sealed = bytes.fromhex("ab1a13c9d4f01a87ec3440dbd756e2677bd2ecf9df0ce7ed73869b98e00c09be111cb9fdf077347aeb88e61bdf")
    own = hpke.OwnKey(recipient)
    for key in (recipient, own, own):  # an own key remembers what it agreed on with the sender
        context = hpke.receive(enc, sender, key, b"Ode on a Grecian Urn")
        assert context.open(sealed, b"Count-0") == b"Beauty is truth, truth beauty"


def test_a_context_keeps_the_order():
    ours, theirs = bytes(range(32)), bytes(range(1, 33))
    enc, sending = hpke.send(hpke.public_of(theirs), ours, bytes(range(2, 34)), b"talk")
    first, second = sending.seal(b"one", b""), sending.seal(b"two", b"")
    receiving = hpke.receive(enc, hpke.public_of(ours), theirs, b"talk")
    assert (receiving.open(first, b""), receiving.open(second, b"")) == (b"one", b"two")
    with pytest.raises(LetterError, match="does not open"):
        hpke.receive(enc, hpke.public_of(ours), theirs, b"talk").open(second, b"")


def test_an_own_key_that_is_used_for_many_messages_makes_the_same_ones(monkeypatch):
    monkeypatch.setattr(hpke, "_MOST_AGREED", 2)
    ours, others = hpke.OwnKey(bytes(range(32))), [bytes([i]) * 32 for i in range(1, 5)]
    for other in [*others, *others]:
        public = hpke.public_of(other)
        once, often = (hpke.send(public, key, bytes(range(2, 34)), b"talk") for key in (ours.private, ours))
        assert once[0] == often[0]
        assert once[1].seal(b"one", b"") == often[1].seal(b"one", b"")
    with pytest.raises(LetterError, match="public key is not usable"):
        ours.agree(bytes(32))


def test_a_key_that_was_replaced_is_forgotten():
    keys = DerivedKeys(b"r" * 32)
    seals, sent = RealSealing(keys, "job 1"), letter()
    assert seals.open(sent) == SECRET
    keys._private["b"] = bytes(range(32))
    keys._public.clear()
    with pytest.raises(LetterError, match="does not open"):
        seals.open(sent)
    assert seals.open(letter(seals)) == SECRET


def test_a_key_without_a_secret_in_it_is_refused():
    with pytest.raises(LetterError, match="public key is not usable"):
        hpke.send(bytes(32), bytes(range(32)), bytes(range(1, 33)), b"")


# ---------------------------------------------------------------------- letters


def sealing(domain="job 1", root=b"r" * 32):
    return RealSealing(DerivedKeys(root), domain)


def letter(seals=None, sender="a", to="b", request="main/t/0", number=0, content=SECRET, ephemeral=b"e" * 32):
    return (seals or sealing()).seal(sender, to, request, number, content, lambda n: ephemeral[:n])


def changed(original, **fields):
    return Letter.unpack({**original.pack(), **fields})


def test_a_letter_opens_at_its_recipient():
    assert sealing().open(letter()) == SECRET
    assert SECRET.encode() not in letter().encode()


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda a: changed(a, **{"from": "c"}), id="another-sender"),
        pytest.param(lambda a: changed(a, to="c"), id="another-recipient"),
        pytest.param(lambda a: changed(a, **{"from": "b", "to": "a"}), id="reflected"),
        pytest.param(lambda a: changed(a, at="main/t/1"), id="another-request"),
        pytest.param(lambda a: changed(a, n=1), id="another-number"),
        pytest.param(lambda a: changed(a, box=a.ciphertext[:-1] + bytes([a.ciphertext[-1] ^ 1])), id="altered"),
        pytest.param(lambda a: changed(a, box=a.ciphertext[:-20]), id="cut"),
        pytest.param(lambda a: changed(a, key=b"k" * 32), id="another-key"),
        pytest.param(lambda a: changed(a, key=letter(content="other", ephemeral=b"f" * 32).key), id="swapped-key"),
        pytest.param(lambda a: letter(sealing("job 2")), id="another-job"),
        pytest.param(lambda a: letter(sealing(root=b"s" * 32)), id="another-authority"),
        pytest.param(lambda a: letter(VirtualSealing()), id="not-encrypted"),
    ],
)
def test_nothing_of_a_letter_can_be_changed(forged):
    with pytest.raises(LetterError, match=r"does not open|not encrypted"):
        sealing().open(forged(letter()))


@given(messages())
def test_virtual_letters_account_the_size_of_real_ones(content):
    real, virtual = letter(content=content), letter(VirtualSealing(), content=content)
    assert virtual.nbytes == real.nbytes == M.nbytes(real.pack()) == len(real.encode())
    assert M.equal(VirtualSealing().open(virtual), sealing().open(real))
    assert Letter.unpack(virtual.pack()).nbytes == virtual.nbytes


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {**letter().pack(), "more": 1},
        {**letter().pack(), "key": b"short"},
        {**letter().pack(), "n": -1},
    ],
)
def test_what_is_no_letter_is_refused(wrong):
    with pytest.raises(LetterError, match=r"is not a letter|a letter whose key"):
        Letter.unpack(wrong)
    with pytest.raises(LetterError, match=r"is not a letter|a letter whose key"):
        Letter.decode(M.encode(wrong))


def test_the_program_has_no_way_to_a_content():
    mail = Mailboxes({"b": {"a": letter(VirtualSealing())}})
    seen = [name for name in dir(mail.box("b")["a"]) if not name.startswith("_")]
    assert seen == [
        "ciphertext", "decode", "encode", "envelope", "key", "nbytes", "number", "pack", "real", "request", "sender", "tag", "to", "unpack",
    ]  # fmt: skip
    assert SECRET not in repr(mail.box("b"))
    assert mail.box("b")["a"].ciphertext == b""
    assert mail.routes == [("a", "b")]
    assert mail.nbytes("b") == letter().nbytes


def test_the_letters_of_two_supersteps_go_out_together():
    first, second = letter(request="main/t/0"), letter(sender="c", request="main/u/0")
    one, other = Mailboxes({"b": {"a": first}}), Mailboxes({"b": {"c": second}, "a": {"c": letter(sender="c", to="a")}})
    both = one | other
    assert both.routes == [("a", "b"), ("c", "a"), ("c", "b")]
    assert both.box("b") == {"a": first, "c": second}
    assert both.nbytes("b") == one.nbytes("b") + other.nbytes("b")
    assert (one.routes, other.routes) == ([("a", "b")], [("c", "a"), ("c", "b")])
    again = Mailboxes({"b": {"a": letter(request="main/t/1")}})
    with pytest.raises(ConfigError, match=r"two letters of a to b, of main/t/0 and main/t/1.*deliver one of them"):
        one | again


# ---------------------------------------------------------------------- the record


def promise(what, bound):
    return hash_parts(what), hash_parts(bound)


def test_a_promise_is_given_once_also_after_a_restart(tmp_path):
    path = tmp_path / "record.log"
    record = Record(path)
    record.note([promise("letter", "main/r/0"), promise("set", "all")])
    with path.open("ab") as file:
        file.write(b"torn")
    again = Record(path)
    assert (again.incarnation, again.key, again.renewed) == (record.incarnation, record.key, False)
    again.note([promise("letter", "main/r/0")])  # the same request, run again after a crash
    with pytest.raises(PolicyError, match="has answered otherwise before"):
        again.note([promise("other", "x"), promise("letter", "main/r/1")])
    assert again.get(hash_parts("other")) is None  # all or nothing
    with pytest.raises(PolicyError, match="has answered otherwise before"):
        again.note([promise("new", "x"), promise("new", "y")])
    assert len(Record(path)) == 2


def test_a_copied_record_is_another_incarnation(tmp_path):
    first = Record(tmp_path / "record.log")
    first.note([promise("set", "all")])
    (tmp_path / "copy.log").write_bytes((tmp_path / "record.log").read_bytes())
    copy = Record(tmp_path / "copy.log")
    assert copy.renewed
    assert copy.incarnation != first.incarnation
    assert len(copy) == 0
    assert not Record(tmp_path / "copy.log").renewed  # from now on it is itself
    (tmp_path / "record.log").rename(tmp_path / "moved.log")
    assert len(Record(tmp_path / "moved.log")) == 1  # the file itself, elsewhere
    (tmp_path / "other.log").write_bytes(b"something else" * 9)
    with pytest.raises(CheckpointError, match="no record of promises"):
        Record(tmp_path / "other.log")


def test_promises_of_many_parties_are_written_once(tmp_path, monkeypatch):
    written = []
    append = record_module.append_bytes
    monkeypatch.setattr(
        record_module, "append_bytes", lambda path, rows, **at: (written.append(len(rows)), append(path, rows, **at))
    )
    record = Record(tmp_path / "record.log")
    written.clear()
    with record.write_together():
        record.note([promise("a", "x")])
        with pytest.raises(PolicyError, match="has answered otherwise before"):
            record.note([promise("a", "y")])
        record.note([promise("b", "x")])
        assert written == []
    assert written == [2 * 32]
    record.note([promise("c", "x")])
    assert len(Record(tmp_path / "record.log")) == 3


def test_without_a_file_only_the_latest_promises_are_kept():
    record = Record()
    for number in range(250):
        record.note([promise(f"{number} {i}", "x") for i in range(1000)])
    assert len(record) <= 101_000
    with pytest.raises(PolicyError, match="has answered otherwise before"):
        record.note([promise("249 0", "y")])


@given(messages(), messages())
def test_equal_trees_alone_have_one_hash(one, other):
    key = bytes(range(16))
    same = M.encode(one) == M.encode(other)
    assert (hash_tree(key, one) == hash_tree(key, other)) == same
    assert hash_tree(key, one) == hash_tree(key, M.decode(M.encode(one)))
    assert hash_tree(key, one) != hash_tree(bytes(16), one)


def test_every_bit_of_a_long_array_is_hashed():
    long = np.zeros(1 << 15)
    other = long.copy()
    other[-1] = 1e-300
    assert hash_tree(bytes(16), {"x": long}) != hash_tree(bytes(16), {"x": other})
    assert hash_tree(bytes(16), {"x": long}) != hash_tree(bytes(16), {"x": long.reshape(2, -1)})
    assert hash_tree(bytes(16), {"x": long}) != hash_tree(bytes(16), {"x": long.astype(np.int64)})


# ---------------------------------------------------------------------- in a federation


@task
def writes(island, message):
    island.post(message, {"secret": SECRET, "x": np.ones(3)})
    return island.seal(message, [SECRET])


@task
def reads(island, message):
    return island.inbox["client-0"]["secret"], None if message is None else island.open("client-0", message)


@task
def reads_what_opens(island, message):
    found = []
    for sender, one in island.letters.items():
        try:
            found.append(island.open(sender, one)["secret"])
        except LetterError as error:
            found.append(str(error))
    return found


def live(program, **more):
    return run_in(World(Community([1.0, 2.0, 3.0]), Inline(), **more), program)


def delivered(relay=lambda mail: mail, reader="client-1", task=reads, times=1, **more):
    """Client 0 writes to client 1; the relay does what it likes; the reader reads."""

    async def program(fed):
        first = await fed.exchange(fed.parties[:1], writes, "client-1")
        mail = relay(first.mail)
        for _ in range(times):
            last = await fed.exchange(fed.parties.named(reader), task, first.values[0], mail=mail)
        return last.values[0] if len(last) else last.errors

    return live(program, **more)[0]


@pytest.mark.parametrize("kind", ["virtual", "real"])
def test_posted_and_sealed_values_arrive(kind):
    assert delivered(sealing=kind) == (SECRET, [SECRET])


def test_what_the_relay_holds_is_ciphertext():
    held = []
    delivered(lambda mail: held.append(M.encode(mail.sealed())) or mail, sealing="real")
    assert SECRET.encode() not in held[0]
    assert len(held[0]) > 100


def forge(mail, **fields):
    return Mailboxes({"client-1": {"client-0": {**mail.sealed()["client-1"]["client-0"], **fields}}})


def swapped(mail):
    return Mailboxes({"client-1": {"client-2": mail.sealed()["client-1"]["client-0"]}})


def redirected(mail):
    return Mailboxes({"client-2": {"client-0": mail.sealed()["client-1"]["client-0"]}})


@pytest.mark.parametrize("kind", ["virtual", "real"])
@pytest.mark.parametrize(
    ("relay", "reader", "match"),
    [
        (swapped, "client-1", r"envelope says client-0 to client-1.*a letter of client-2 to client-1"),
        (redirected, "client-2", r"envelope says client-0 to client-1"),
    ],
)
def test_a_letter_in_the_wrong_hands_is_refused(kind, relay, reader, match):
    with pytest.raises(LetterError, match=match):
        delivered(relay, reader, task=reads_inbox, sealing=kind)


@task
def reads_inbox(island, message):
    return island.inbox


def test_a_relay_that_alters_is_refused_and_the_party_counted():
    def alters(mail):
        return forge(mail, box=bytes(64))

    with pytest.raises(LetterError, match=r"does not open.*a letter of client-0 to client-1"):
        delivered(alters, sealing="real")

    async def program(fed):
        first = await fed.exchange(fed.parties[:1], writes, "client-1")
        return await fed.exchange(fed.parties[1:2], reads, mail=alters(first.mail), quorum=0)

    heard, _ = live(program, sealing="real", errors="drop")
    assert isinstance(heard.errors["client-1"], LetterError)
    assert heard.silent.names == ["client-1"]


@pytest.mark.parametrize("kind", ["virtual", "real"])
def test_a_letter_that_is_handed_over_twice_is_refused(kind):
    with pytest.raises(LetterError, match="was opened before in another request"):
        delivered(times=2, sealing=kind)


def test_a_protocol_may_go_on_without_what_does_not_open():
    found = delivered(lambda mail: forge(mail, n=5), task=reads_what_opens, sealing="real")
    assert len(found) == 1
    assert "does not open" in found[0]
    assert delivered(task=reads_what_opens, sealing="real") == [SECRET]


def test_nobody_outside_the_job_gets_a_letter():
    with pytest.raises(ConfigError, match=r"no party is named 'client-7'"):
        live(lambda fed: fed.ask("client-0", writes, "client-7"))


@task
def seals_raw_data(island, message):
    return island.seal("client-1", "raw data")


class NoRawData(Policy):
    def release(self, party, task, reply):
        if reply == "raw data":
            raise PolicyError("raw data stay here", where=party.name)


def test_a_policy_sees_what_is_sealed():
    with pytest.raises(PolicyError, match="raw data stay here"):
        live(lambda fed: fed.ask("client-0", seals_raw_data), policy=NoRawData(), sealing="real")


@task
def draws_between(island, message):
    before = island.secret.bytes(4)
    if message:
        island.post("client-1", 1)
    return before + island.secret.bytes(4)


def test_sealing_changes_no_other_secret():
    def drawn(message):
        return live(lambda fed: fed.ask("client-0", draws_between, message), sealing="real", secret_seed=3)[0]

    assert drawn(False) == drawn(True)


def test_a_reply_with_real_letters_is_in_the_journal():
    kept = []

    async def program(fed):
        await fed.exchange(fed.parties[:1], writes, "client-1")
        kept.append(len(fed.world.engine.host.journal))

    live(program, sealing="real")
    live(program)
    assert kept == [1, 0]


def test_the_worlds_key_lies_in_its_folder_and_is_nobody_elses_to_read(tmp_path):
    delivered(sealing="real", folder=tmp_path)
    path = tmp_path / "letters.key"
    assert len(path.read_bytes()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_ledger_says_that_letters_were_not_encrypted():
    def kinds(**more):
        async def program(fed):
            for _ in range(2):
                await fed.exchange(fed.parties[:1], writes, "client-1")

        _, fed = live(program, **more)
        return [entry["kind"] for entry in fed.world.ledger]

    assert kinds() == ["letters-unencrypted"]
    assert kinds(sealing="real") == []


def test_a_sealing_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="sealing='none'"):
        live(lambda fed: fed.ask("client-0", reads), sealing="none")


def test_without_cryptography_the_remedy_is_the_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingExtraError, match=r'pip install "atoll\[net\]"'):
        letter()


@given(st.binary(max_size=64))
def test_bytes_that_are_no_letter_are_refused_in_words(raw):
    with pytest.raises(LetterError, match="not a letter"):
        Letter.decode(raw)


# ---------------------------------------------------------------------- what a letter is for


def in_sum(party, request, agreed=b"", written_in="", arrived=None):
    """The letterbox of a party in a step of a sum."""
    box = Letterbox(party, request, sealing(), arrived, sum=request.rpartition("/")[0].rpartition("/")[0])
    box.bind(agreed, written_in)
    return box


@pytest.mark.parametrize(
    ("request_", "agreed", "step", "why"),
    [
        ("main/train/@0//Sum/masked/0", b"agreed", "deal", ""),
        ("main/train/@1//Sum/masked/0", b"agreed", "deal", "it was written in main/train/@0//Sum/deal/0"),
        ("main/train/@0//Sum/masked/0", b"other", "deal", "does not open"),
        ("main/train/@0//Sum/masked/0", b"agreed", "vote", "it was written in main/train/@0//Sum/deal/0"),
    ],
)
def test_a_letter_opens_in_its_sum_for_its_agreement_and_in_its_step(request_, agreed, step, why):
    letter = in_sum("client-0", "main/train/@0//Sum/deal/0", b"agreed").write(
        "client-1", SECRET, lambda n: bytes(range(n))
    )
    box = in_sum("client-1", request_, agreed, step)
    if not why:
        assert box.open("client-0", letter) == SECRET
        return
    with pytest.raises(LetterError, match=why):
        box.open("client-0", letter)
    assert box.opened == []
