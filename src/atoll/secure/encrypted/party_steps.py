"""The parties' halves of an encrypted sum, as tasks.

===============  ============================================================  ============================================
superstep        the party                                                     the server gets
===============  ============================================================  ============================================
make_keys        *key holder*: makes a pair of keys, and tells the parties in  the public key
                 sealed letters its hash and the weights of the tags
deal_keys        *dealer*: the same with shares of the private key             the public key
encrypt_totals   *party*: runs the task, encodes its totals as words,          the ciphertext, and the form of the totals
                 encrypts them under the key whose hash it was told, and
                 tells who decrypts its pads, or the hash of its ciphertext
open_sum         *key holder*: decrypts the sum, checks its tags               the sums
vote_on_sum      *party*: tells the others who is in the sum (against an       nothing
                 active server)
answer_sum       *party*: its part of the decryption                           the part, with a proof
===============  ============================================================  ============================================

**Once.** Who opens a sum binds itself to its set in its record (`bind_set`), for which the parties vote between organisations. So nobody opens the sums of two sets,
whose difference would be a party's numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, DataError, LetterError, PolicyError
from atoll.core.requests.task import task

from ..ballot import bind_set, cast_vote, ready_to_vote, require_majority
from ..words import form_of
from .agreement import PRIMES, EncryptedAgreement, key_hash, numbers_of, pads, right, tags
from .paillier import Paillier
from .threshold import ThresholdPaillier

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Island
    from atoll.core.requests.results import Exchanged

__all__ = ["GatheredCiphertexts", "answer_sum", "deal_keys", "encrypt_totals", "make_keys", "open_sum", "vote_on_sum"]


# ------------------------------------------------------------------ the parties' halves of an encrypted sum, as tasks


def _promised(message: Tree) -> int:
    """The smallest sum that a lying server can have opened: the holder's tags, or the parties' own additions, see to it. An honest server promises nothing."""
    agreed = message["agreed"]
    return int(agreed["least"]) if agreed["active"] or not agreed["threshold"] else 0


def _promised_before(message: Tree) -> None:
    """What *encrypt_totals* has promised holds for the other steps."""
    del message


@task(promise=_promised_before)
def make_keys(island: Island, message: Tree) -> Tree:
    """At the key holder: make keys for one sum, and return the public one."""
    agreed = _agreed(island, message)
    if island.name in agreed.names:
        raise PolicyError(
            f"{island.name} would hold the key of a sum that it is in",
            where="encrypted sum",
            remedy="name another holder",
        )
    island.bind_letters(agreed.fingerprint)
    public, private = agreed.scheme.make_keys(island.secret)
    seed = island.secret.bytes(32)
    for name in agreed.names:
        island.post(name, {"key": key_hash(public), "terms": agreed.fingerprint, "weights": seed})
    island.state = {"agreed": message, "private": private, "weights": seed}
    return public


@task(promise=_promised_before)
def deal_keys(island: Island, message: Tree) -> Tree:
    """At the dealer: make a key whose private part only a threshold of the parties has together, and return the public one."""
    agreed = _agreed(island, message)
    scheme = threshold_of(agreed.scheme)
    island.bind_letters(agreed.fingerprint)
    public, shares = scheme.deal(len(agreed.names), agreed.threshold, island.secret)
    for name, share in zip(agreed.names, shares, strict=True):
        sealed = island.seal(name, share)
        island.post(name, {"key": key_hash(public), "terms": agreed.fingerprint, "share": sealed})
    return public


def threshold_of(scheme: Any) -> ThresholdPaillier:
    """Return the threshold scheme with the settings of a Paillier scheme.

    Raises:
        PolicyError: it is another scheme.
    """
    if not isinstance(scheme, Paillier):
        raise PolicyError(f"a threshold with scheme {scheme.name!r}", remedy="use scheme='paillier'")
    return ThresholdPaillier(scheme.key_bits, scheme.insecure)


@task(promise=_promised)
async def encrypt_totals(island: Island, message: Tree) -> Tree:
    """At a party: reply with its encrypted totals."""
    agreed, public = _agreed(island, message["agreed"]), message["public"]
    island.bind_letters(agreed.fingerprint)
    told = list(island.inbox.values())
    if len(told) != 1 or told[0]["key"] != key_hash(public):
        raise PolicyError(
            "a public key that its maker has not announced",
            where=island.name,
            remedy="look at the server: who sends a key of its own reads what is encrypted under it",
        )
    if told[0]["terms"] != agreed.fingerprint:
        raise PolicyError(
            "terms of the sum that are not those which the keys were made for",
            where=island.name,
            remedy="look at the server: it tells parties different things",
        )
    (maker,) = island.inbox
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = agreed.lanes(layout)
    numbers = numbers_of(lanes, layout.encode(totals, island.name))
    if agreed.threshold:
        sealed = agreed.scheme.encrypt(public, numbers, agreed.form(lanes), island.secret)
        digest = hashlib.sha256(sealed.tobytes()).digest()
        for name in agreed.names:
            island.post(name, digest)
        island.state = {
            "agreed": message["agreed"],
            "public": public,
            "share": told[0]["share"],
            "maker": maker,
            "form": layout.form,
            **ready_to_vote(island, agreed.electorate()),
        }
    else:
        pad = pads(island.secret)
        numbers.append(tags(told[0]["weights"], numbers, pad))
        sealed = agreed.scheme.encrypt(public, numbers, agreed.form(lanes), island.secret)
        island.post(maker, {"pads": np.array(pad, dtype=np.uint64), "layout": layout.fingerprint})
        island.state = ready_to_vote(island, agreed.electorate())
    return {"sealed": sealed if sealed.size % 8 else sealed.view("<u8"), "form": layout.form}


@task(promise=_promised_before)
def open_sum(island: Island, message: Tree) -> Tree:
    """At the key holder: return the sums of the parties' numbers, once, if their tags are right."""
    kept, state = list(message["kept"]), island.state
    if not state or not state.get("private"):
        raise PolicyError(
            "a sum without keys, or a second one", where=island.name, remedy="look at the server: it asked twice"
        )
    agreed = _agreed(island, state["agreed"])
    island.bind_letters(agreed.fingerprint)
    agreed.require_set(kept)
    require_majority(island, agreed.electorate(), kept, message["votes"])
    island.bind_letters(agreed.fingerprint, encrypt_totals.name)
    letters = island.inbox
    for name, letter in letters.items():
        _require_pads(name, letter)
    layout = agreed.layout(message["form"])
    if set(letters) != set(kept) or any(letter["layout"] != layout.fingerprint for letter in letters.values()):
        missing = sorted(set(kept) ^ set(letters)) or [
            n for n, one in letters.items() if one["layout"] != layout.fingerprint
        ]
        raise PolicyError(
            f"a sum of {len(kept)} parties, but {', '.join(missing)} encrypted no such numbers",
            where="encrypted sum",
            remedy="look at the server: it must add up what the parties sent",
        )
    form = agreed.form(agreed.lanes(layout))
    *sums, tagged = agreed.scheme.decrypt(state["private"], message["sealed"], form)
    if not right(state["weights"], sums, tagged, [letter["pads"] for letter in letters.values()]):
        raise PolicyError(
            f"a ciphertext that is not the sum of {len(kept)} parties: it was altered, or one is missing or in it twice",
            where="encrypted sum",
            remedy="look at the server: it must add up what the parties sent, each once",
        )
    island.state = {}
    return list(sums)


@task(promise=_promised_before)
def vote_on_sum(island: Island, message: Tree) -> None:
    """At a party: keep what the others say that they sent, and tell them who is in the sum, once."""
    kept = list(message["kept"])
    label, sent = cast_vote(island, kept), dict[str, Any]()
    for name, letter in island.letters.items():
        try:
            sent[name] = island.open(name, letter)
        except LetterError:  # its ciphertext is then refused
            continue
    for name in kept:
        island.post(name, label)
    island.state = {**island.state, "sent": sent}


@task(promise=_promised_before)
def answer_sum(island: Island, message: Tree) -> Tree:
    """At a party: return its part of the decryption of a sum, once."""
    kept, state = list(message["kept"]), island.state
    if not state or not state.get("share"):
        raise PolicyError(
            "a second sum, or one without a share", where=island.name, remedy="look at the server: it asked twice"
        )
    agreed = _agreed(island, state["agreed"])
    island.bind_letters(agreed.fingerprint)
    agreed.require_set(kept, island.name)
    if agreed.active:
        require_majority(island, agreed.electorate(), kept, island.letters, vote_on_sum.name)
    island.bind_letters(agreed.fingerprint, deal_keys.name)
    bind_set(island, kept, state["matter"])
    scheme, public = threshold_of(agreed.scheme), state["public"]
    form = agreed.form(agreed.lanes(agreed.layout(state["form"])))
    sealed = message["sealed"]
    if agreed.active:  # add up what the others say that they sent
        sealed = _summed(state["sent"], scheme, public, message, form, island.name)
    share = island.open(state["maker"], state["share"])
    island.state = {}
    return scheme.answer(public, share, sealed, form, island.secret)


def _summed(sent: Any, scheme: ThresholdPaillier, public: Tree, message: Tree, form: Any, me: str) -> Any:
    """The sum of the ciphertexts in a message, after comparing each with its sender's letter.

    Raises:
        PolicyError: names the party whose ciphertext was altered.
    """
    parts = message.get("parts", {})
    for name in message["kept"]:
        if name not in parts or sent.get(name) != hashlib.sha256(np.asarray(parts[name]).tobytes()).digest():
            raise PolicyError(
                f"a ciphertext that {name} has not sent",
                where=me,
                remedy="look at the server: it must add up what the parties sent",
            )
    return scheme.add(public, [parts[name] for name in message["kept"]], form)


def _require_pads(name: str, letter: Any) -> None:
    """Require that a party's letter has its pads, and says what it encrypted.

    Raises:
        DataError: names the party whose letter has not.
    """
    found = letter.get("pads") if isinstance(letter, dict) and isinstance(letter.get("layout"), bytes) else None
    if not isinstance(found, np.ndarray) or found.dtype != np.uint64 or found.shape != (len(PRIMES),):
        raise DataError(
            f"{name} sealed a letter without pads", where="encrypted sum", remedy=f"leave {name} out, and look at it"
        )


def _agreed(island: Island, message: Tree) -> EncryptedAgreement:
    """The terms of a sum.

    Raises:
        PolicyError: they are none, or a server of another organisation says that the parties trust it.
    """
    agreed = EncryptedAgreement.of(message, real=island.sealing.real)
    if island.remote and agreed.threshold and not agreed.active:
        raise PolicyError(
            "an encrypted sum that trusts the server, between organisations",
            where="encrypted sum",
            remedy="use server='active', or leave it out",
        )
    return agreed


def require_ciphertext(reply: Any) -> tuple[Any, Any]:
    """Return ciphertext and form of a reply.

    Raises:
        DataError: it has none.
    """
    try:
        sealed, form = reply["sealed"], reply["form"]
    except (TypeError, KeyError):
        sealed = form = None
    if not isinstance(sealed, np.ndarray) or sealed.dtype.kind != "u" or sealed.ndim != 1:
        raise DataError("a reply without a ciphertext", where="encrypted sum", remedy="reply with encrypt_totals")
    return np.ascontiguousarray(sealed).view(np.uint8), form


# ------------------------------------------------------------------ the parties' ciphertexts as they come in
#
# The parties' ciphertexts as they come in: those that are none, or are of other totals, are left out by name.


class GatheredCiphertexts:
    """The parties' ciphertexts, added up, without those that are none.

    Attributes:
        kept: names of the parties in the sum.
        errors: party -> why its reply is not.
        layout: of the totals that most parties have.
        form: of the ciphertexts.
        total: the ciphertext of the sum.
    """

    def __init__(self, agreed: EncryptedAgreement, public: Any, found: Exchanged) -> None:
        self.public, self.errors = public, dict[str, Exception]()
        self.parts: dict[str, Any] = {}
        forms: dict[str, Any] = {}
        for name, reply in found.by_name().items():
            try:
                self.parts[name], forms[name] = require_ciphertext(reply)
            except AtollError as error:
                self.errors[name] = error
        marks = {name: M.fingerprint(form) for name, form in forms.items()}
        usual = Counter(marks.values()).most_common(1)
        self.kept: list[str] = []
        if not usual:
            return
        self.layout = agreed.layout(next(forms[name] for name, mark in marks.items() if mark == usual[0][0]))
        self.form = agreed.form(agreed.lanes(self.layout))
        adder = agreed.scheme.adder(public, self.form)
        for name, mark in marks.items():
            try:
                if mark != usual[0][0]:
                    raise ConfigError(
                        "totals of another form than the others'",
                        where=name,
                        remedy="reply with the same aggregates everywhere",
                    )
                adder.add(self.parts[name])
                self.kept.append(name)
            except AtollError as error:
                self.errors[name] = error
                del self.parts[name]
        if self.kept:
            self.total = adder.sealed()
