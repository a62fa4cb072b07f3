"""The server relays what parties tell each other, and can neither read it nor hand it over as anything else than it is."""

from __future__ import annotations

import asyncio
import copy
import json
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import LetterError, MessageError, PolicyError
from atoll.core.sealing import RoleSealing, Speaker
from atoll.core.sealing import letterbox as sessions
from atoll.core.sealing.hpke import public_of
from atoll.core.time.clock import run
from atoll.runtime.identity import peer_of
from atoll.runtime.job_spec import parse_job
from atoll.runtime.line import PackedMessage
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import serve_job
from atoll.runtime.worker.letters import LetterKey, SignedKey
from tests.support.certificates import Authority, authority
from tests.support.work_toys import joined, sites_of

sys.path.append(str(Path(__file__).parent))  # a job's own code is a module beside it, and has a name as short
from whispers import CANARY, OPEN, whisper

HERE = authority()
NAMES = ["north", "south", "west"]
KITS = {name: HERE.issue("site", name) for name in NAMES}
LIST = HERE.revocation_list()
SOUTH = peer_of(KITS["south"].certificate).serial


def key_of(folder: Path, site: str = "north", **more: Any) -> LetterKey:
    words = {"project": "study", "job": "job-1", "site": site, "state": folder / site, "revoked": LIST, **more}
    return LetterKey.make_key(words.pop("credentials", KITS.get(site)), **words)


# ---------------------------------------------------------------------- signed keys


def test_the_key_of_a_job_is_private_and_outlives_attempts(tmp_path: Path) -> None:
    first = key_of(tmp_path)
    path = tmp_path / "north" / "letters.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.private == path.read_bytes() == key_of(tmp_path).private
    assert first.signed.public == public_of(first.private)
    assert LetterKey.read_order(first.order(), path) == first
    assert first.private not in M.encode(first.order())
    assert first.private.hex() not in repr(first)
    assert repr(first.private) not in repr(first)


def told(folder: Path, **more: Any) -> SignedKey:
    return key_of(folder, "south", **more).signed


STRANGER = Authority().issue("site", "south")
REFUSED: dict[str, tuple[Callable[[Path], SignedKey], str]] = {
    "another site's": (lambda f: key_of(f, "west").signed, "site 'west' of 'West' is refused: 'south' was meant"),
    "another job's": (lambda f: told(f, job="job-2"), "its kit has not signed this key for this job"),
    "another key": (lambda f: replace(told(f), public=bytes(range(32))), "its kit has not signed this key"),
    "a cut signature": (lambda f: replace(told(f), signature=b""), "its kit has not signed this key"),
    "another authority's": (
        lambda f: told(f, credentials=STRANGER),
        "no authority of this project has issued its certificate",
    ),
    "another project's": (
        lambda f: told(f, credentials=HERE.issue("site", "south", project="hearts")),
        "it belongs to project 'hearts', not 'study'",
    ),
    "an admin's": (lambda f: told(f, credentials=HERE.issue("admin", "south")), "role 'admin' cannot act as site"),
    "the server's": (lambda f: told(f, credentials=HERE.issue("server", "south")), "role 'server' cannot act as site"),
    "one that has expired": (
        lambda f: told(f, credentials=HERE.issue("site", "south", expired=True)),
        "its certificate is valid from",
    ),
    "no certificate": (lambda f: replace(told(f), certificate=b"nothing"), "not a certificate"),
}


@pytest.mark.parametrize(("made", "words"), REFUSED.values(), ids=REFUSED)
def test_a_key_that_the_site_has_not_signed_is_refused_by_name(
    made: Callable[[Path], SignedKey], words: str, tmp_path: Path
) -> None:
    sealing = key_of(tmp_path).sealing({"south": made(tmp_path)})
    with pytest.raises(LetterError, match=r"the key of site 'south' is refused: .*") as found:
        sealing.seal("north", "south/3", "r", 0, CANARY, lambda n: bytes(range(n)))
    assert words in found.value.what
    assert found.value.remedy


def test_a_revoked_sites_key_is_refused_by_name(tmp_path: Path) -> None:
    keys = {"south": told(tmp_path)}
    letter = key_of(tmp_path, "south").sealing({"north": key_of(tmp_path).signed})
    written = letter.seal("south", "north", "r", 0, CANARY, lambda n: bytes(range(n)))
    assert key_of(tmp_path).sealing(keys).open(written) == CANARY
    north = key_of(tmp_path, revoked=HERE.revocation_list(SOUTH, number=2)).sealing(keys)
    for attempt in (lambda: north.keys.public("south"), lambda: north.open(written)):
        with pytest.raises(LetterError, match=r"the key of site 'south' is refused: .*serial .* was revoked"):
            attempt()
    with pytest.raises(LetterError, match="'south' is refused: this site knows no revocation list"):
        key_of(tmp_path, revoked=b"").sealing(keys).keys.public("south")
    with pytest.raises(LetterError, match="'south' is refused: the revocation list is not signed"):
        key_of(tmp_path, revoked=Authority().revocation_list()).sealing(keys).keys.public("south")


def test_keys_are_a_sites_own_and_of_those_that_are_there(tmp_path: Path) -> None:
    keys = key_of(tmp_path).sealing({"north": told(tmp_path)}).keys
    assert keys.public("north") == keys.public("north/1") == public_of(keys.private("north/2"))
    for party in ("south", "northern", "northern/1"):
        with pytest.raises(LetterError, match=f"{party} is not a party of site 'north'"):
            keys.private(party)
    with pytest.raises(LetterError, match="no key of site 'judge' is known in this job"):
        keys.public("judge")


@pytest.mark.parametrize(
    "tree", [None, {}, {**told.__annotations__}, {"public": b"", "certificate": b"", "signature": ""}]
)
def test_what_is_no_signed_key_is_refused(tree: Any) -> None:
    with pytest.raises(MessageError, match="no signed key for letters"):
        SignedKey.unpack(tree, "site 'south'")


# ---------------------------------------------------------------------- conversations


def speakers(folder: Path, runs: int = 1) -> Iterator[dict[str, RoleSealing]]:
    """The roles a (north) and b (south) of one session, as often as it is run."""
    signed = {name: key_of(folder, name).signed for name in ("north", "south")}
    for i in range(runs):
        drawn = {"a": {"b": bytes([i + 1]) * 32}, "b": {"a": bytes([i + 101]) * 32}}
        cast = {
            role: Speaker(site, f"main/{role}", {other: public_of(key) for other, key in drawn[role].items()})
            for role, site in (("a", "north"), ("b", "south"))
        }
        yield {
            role: RoleSealing(key_of(folder, cast[role].party).sealing(signed), role, cast, drawn[role])
            for role in cast
        }


@pytest.mark.parametrize("piece", [1 << 26, 64])
def test_a_conversation_is_read_by_its_roles_alone(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PIECE", piece)
    (roles,) = speakers(tmp_path)
    for i in range(4):
        message = {"canary": CANARY, "x": np.arange(50 * i), "i": i}
        for one, other in (("a", "b"), ("b", "a")):
            sealed = roles[one].seal(other, message)
            assert M.nbytes(sealed) == sessions.sealed_nbytes(M.nbytes(message))
            assert CANARY.encode() not in sealed.tobytes()
            assert M.equal(roles[other].open(one, sealed), message)


def altered(sealed: Any) -> Any:
    return np.concatenate([sealed[:-1], sealed[-1:] ^ 1])


WRONG: dict[str, tuple[int, Callable[[Any, Any], list[Any]]]] = {
    "altered": (1, lambda one, two: [altered(one)]),
    "cut": (1, lambda one, two: [one[:-64]]),
    "empty": (1, lambda one, two: [one[:0]]),
    "in the clear": (1, lambda one, two: [{"x": 1}]),
    "left out": (1, lambda one, two: [two]),
    "out of order": (1, lambda one, two: [two, one]),
    "repeated": (2, lambda one, two: [one, one]),
    "altered later": (2, lambda one, two: [one, altered(two)]),
}


@pytest.mark.parametrize("piece", [1 << 26, 64])
@pytest.mark.parametrize(("at", "relay"), WRONG.values(), ids=WRONG)
def test_a_relay_can_only_hold_back(
    at: int, relay: Any, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PIECE", piece)
    (roles,) = speakers(tmp_path)
    handed = relay(*(roles["a"].seal("b", {"x": np.full(40, float(i))}) for i in range(2)))
    for sealed in handed[: at - 1]:
        roles["b"].open("a", sealed)
    words = rf"(does not open|not encrypted).*message {at} of role 'a' at north to role 'b' at south"
    with pytest.raises(LetterError, match=words):
        roles["b"].open("a", handed[at - 1])


def test_a_conversation_cannot_be_played_again(tmp_path: Path) -> None:
    """Not even where the relay also hands over the key that its speaker drew for the other run."""
    first, second = speakers(tmp_path, runs=2)
    sealed = first["a"].seal("b", CANARY)
    with pytest.raises(LetterError, match="does not open"):
        second["b"].open("a", sealed)
    third = next(speakers(tmp_path))
    third["b"]._cast = {**third["b"]._cast, "b": second["b"]._cast["b"]}
    third["b"]._drawn = second["b"]._drawn
    with pytest.raises(LetterError, match="does not open"):
        third["b"].open("a", sealed)


def test_a_message_is_no_other_roles_and_does_not_come_back(tmp_path: Path) -> None:
    (roles,) = speakers(tmp_path)
    sealed = roles["a"].seal("b", CANARY)
    with pytest.raises(LetterError, match="does not open"):
        roles["a"].open("b", sealed)


def test_a_role_without_a_key_is_refused(tmp_path: Path) -> None:
    (roles,) = speakers(tmp_path)
    roles["a"]._cast = {**roles["a"]._cast, "b": Speaker("south", "main/b", {})}
    with pytest.raises(LetterError, match="role 'b' at south has drawn no key for role 'a'"):
        roles["a"].seal("b", 1)


# ---------------------------------------------------------------------- a job, and a server that does what it likes


Mangle = Callable[[str, Any], Any]


class Relayed:
    """The server's end of a site's channel in the hands of somebody else: everything is written down, and some of it changed."""

    def __init__(self, site: str, channel: Any, book: list[bytes], mangle: Mangle) -> None:
        self._site, self._channel, self._book, self._mangle = site, channel, book, mangle

    def __getattr__(self, name: str) -> Any:
        if name in ("post", "feed"):  # the short ways around `send` and `recv`
            raise AttributeError(name)
        return getattr(self._channel, name)

    async def send(self, tree: Any) -> None:
        assert not isinstance(tree, PackedMessage)  # those are for real channels
        await self._channel.send(self._mangle(self._site, tree))

    async def recv(self) -> Any:
        frame = await self._channel.recv()
        self._book.append(M.encode(frame))
        return frame


def honest(site: str, frame: Any) -> Any:
    return frame


def played(
    folder: Path,
    mangle: Mangle = honest,
    *,
    keys: Mapping[str, LetterKey] | None = None,
    secret: int | None = None,
    resume: bool = False,
    **arguments: Any,
) -> tuple[Any, list[bytes]]:
    """One attempt of the job; its result, and all that reached the server."""
    job = parse_job(
        {
            "job": "program",
            "program": "whispers:whisper",
            "arguments": {"names": NAMES, **arguments},
        }
    )
    keys = {name: key_of(folder / "keys", name) for name in NAMES} if keys is None else keys
    book: list[bytes] = []

    async def main() -> Any:
        async with joined(NAMES) as (server, site):
            serving = [
                asyncio.create_task(serve_job(site[name], job, load, folder / "at" / name, letters=keys.get(name)))
                for name, load in sites_of({name: [1] for name in NAMES}).items()
            ]
            relayed = {name: Relayed(name, channel, book, mangle) for name, channel in server.items()}
            try:
                async with asyncio.timeout(100):
                    return await run_job(
                        relayed, job, folder / "server", report=False, secret_seed=secret, resume=resume
                    )
            finally:
                await asyncio.gather(*serving, return_exceptions=True)

    return run(main(), virtual=False)["result"], book


def test_two_shares_through_one_server_are_a_secret(tmp_path: Path) -> None:
    result, book = played(tmp_path)
    whole = b"".join(book)
    assert CANARY.encode() not in whole
    assert OPEN.encode() in whole  # so what reached the server is really there
    for kind in ("real", "virtual"):
        same = atoll.simulate(
            lambda fed: whisper(fed, NAMES), {name: [1] for name in NAMES}, engine="inline", sealing=kind
        )
        assert json.loads(json.dumps(same)) == result  # its bytes among it
    checkpoints = [path for path in (tmp_path / "server").rglob("*") if path.is_file()]
    assert checkpoints
    assert not any(CANARY.encode() in path.read_bytes() for path in checkpoints)
    ledger = tmp_path / "server" / "checkpoints" / "ledger.jsonl"
    assert not ledger.exists() or "letters-unencrypted" not in ledger.read_text()


def test_without_keys_the_server_reads_and_its_ledger_says_so(tmp_path: Path) -> None:
    result, book = played(tmp_path, keys={})
    assert CANARY.encode() in b"".join(book)
    assert "letters-unencrypted" in (tmp_path / "server" / "checkpoints" / "ledger.jsonl").read_text()
    assert result == played(tmp_path / "sealed")[0]  # and bytes are the same


def changed(frame: Any, change: Callable[[Any], None]) -> Any:
    made = copy.deepcopy(frame)
    change(made)
    return made


def swaps_keys(site: str, frame: Any) -> Any:
    def change(made: Any) -> None:
        letters = made["letters"]
        letters["south"], letters["west"] = letters["west"], letters["south"]

    return changed(frame, change) if "letters" in frame else frame


def own_key(folder: Path) -> Mangle:
    """The server puts itself between: a key that it knows, signed by nobody who may."""
    mine = LetterKey.make_key(
        HERE.issue("server", "server"), project="study", job="job-1", site="south", state=folder / "mine", revoked=LIST
    )

    def mangle(site: str, frame: Any) -> Any:
        if "letters" not in frame:
            return frame
        return changed(frame, lambda made: made["letters"].update(south=mine.signed.pack()))

    return mangle


def mail_of(frame: Any) -> Any:
    return frame["request"]["mail"] if frame.get("op") == "launch" else None


def swaps_letters(relabelled: bool) -> Mangle:
    """Each recipient gets, of each sender, what the other two wrote to each other."""

    def mangle(site: str, frame: Any) -> Any:
        def change(made: Any) -> None:
            one, other = sorted(made["request"]["mail"][site])
            box = made["request"]["mail"][site]
            box[one], box[other] = box[other], box[one]
            if relabelled:
                for sender in (one, other):
                    box[sender] = {**box[sender], "from": sender}

        return changed(frame, change) if mail_of(frame) else frame

    return mangle


def replays() -> Mangle:
    """The second time letters are handed over, they are those of the first time."""
    first: dict[str, Any] = {}

    def mangle(site: str, frame: Any) -> Any:
        if not mail_of(frame):
            return frame
        first.setdefault(site, frame["request"]["mail"])
        return changed(frame, lambda made: made["request"].update(mail=first[site]))

    return mangle


def session_replay() -> Mangle:
    """In the second session the host hears the words of the first."""
    kept: list[Any] = []

    def mangle(site: str, frame: Any) -> Any:
        if frame.get("op") != "hand" or frame["role"] != "host":
            return frame
        kept.append(frame["message"])
        return {**frame, "message": kept[0]} if len(kept) == 6 else frame

    return mangle


def session_order(swap: bool) -> Mangle:
    """The host hears a word twice, or another in its place."""
    kept: list[Any] = []

    def mangle(site: str, frame: Any) -> Any:
        if frame.get("op") != "hand" or frame["role"] != "host":
            return frame
        kept.append(frame["message"])
        return {**frame, "message": kept[1]} if len(kept) == 3 else frame

    return mangle


ATTACKS: dict[str, tuple[Callable[[Path], Mangle], str]] = {
    "keys are swapped": (lambda f: swaps_keys, r"the key of site '(south|west)' is refused: .*was meant"),
    "a key of its own": (own_key, r"the key of site 'south' is refused: .*role 'server' cannot act as site"),
    "letters are swapped": (lambda f: swaps_letters(False), r"its envelope says (\w+) to (\w+) \(in .*a letter of"),
    "and relabelled": (lambda f: swaps_letters(True), r"does not open.*a letter of \w+ to \w+"),
    "a session's word again": (lambda f: session_order(False), r"does not open.*message 3 of role 'guest' at north"),
    "a session again": (
        lambda f: session_replay(),
        r"does not open.*message 1 of role 'guest' at north to role 'host'",
    ),
}


@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS)
def test_a_server_that_cheats_is_refused_by_name(attack: Callable[[Path], Mangle], words: str, tmp_path: Path) -> None:
    with pytest.raises(LetterError, match=words) as found:
        played(tmp_path, attack(tmp_path))
    assert found.value.remedy
    assert any(f"at {name}" in str(found.value.where) for name in NAMES)


def test_a_letter_that_the_server_hands_over_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LetterError, match=r"the letter of \w+ to \w+, written in .*, was opened before in another request"
    ):
        played(tmp_path, replays(), again=True)


def test_a_revoked_sites_key_from_the_server_is_refused(tmp_path: Path) -> None:
    newest = HERE.revocation_list(SOUTH, number=2)
    keys = {name: key_of(tmp_path / "keys", name, revoked=newest) for name in NAMES}
    with pytest.raises(LetterError, match=r"the key of site 'south' is refused: .*was revoked") as found:
        played(tmp_path, keys=keys)
    assert any(f"at {name}" in str(found.value.where) for name in NAMES)


def test_the_server_cannot_choose_a_sites_secrets(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="the server wants to choose this site's secrets"):
        played(tmp_path, secret=5)


def test_letters_of_a_checkpoint_open_in_the_next_attempt(tmp_path: Path) -> None:
    """The key is the job's, also where the kit was renewed in between; the sites' data are compared, their keys are not."""

    asked: list[str] = []

    def counts(site: str, frame: Any) -> Any:
        if frame.get("op") == "launch":
            asked.append(frame["request"]["id"])
        return frame

    with pytest.raises(LetterError, match="its envelope says"):
        played(tmp_path, swaps_letters(False))
    renewed = {name: key_of(tmp_path / "keys", name, credentials=HERE.issue("site", name)) for name in NAMES}
    result, _ = played(tmp_path, counts, keys=renewed, resume=True)
    assert not any("deals" in request for request in asked)  # the letters are those of the checkpoint
    assert result == played(tmp_path / "undisturbed")[0]
