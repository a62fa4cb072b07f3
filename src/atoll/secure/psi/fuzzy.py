"""Fuzzy alignment: records that are nearly the same, found by a third party that sees keyed encodings alone (Hardy et al. 2017, section 3; Schnell, Bachteler, Reiher 2009).

Two parties agree on a key that the *linker* does not have. Each turns a record into a cryptographic long-term key: a Bloom filter of the pairs of letters in its fields, with positions by a
keyed hash. The linker compares the encodings of records that share a block by Dice's coefficient ``2 |a & b| / (|a| + |b|)``, and takes pairs one to one, the most similar first.

What is given away: the linker sees how similar any two encodings are, how many letters a record has, and how large blocks are. It does not see fields, as long as it does not have the key:
**together with either party it can try out all names.** Each party learns which of its own records have a partner at the other, and nothing of the rest. All follow the protocol.

The same finds which *columns* of two tables mean the same, with names and forms of columns as records: private schema matching by a third party that compares what it cannot read (Scannapieco, Figotin,
Bertino, Elmagarmid 2007). They embed texts by distances to secret reference strings; keyed Bloom encodings need no such strings, and letters that are equal stay equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError, LetterError, PolicyError, nearest
from atoll.core.exposure import Contract, Exposure, ProtocolFrame
from atoll.core.requests.task import task
from atoll.core.validation import Checked

from .keys import name_columns, normalise_key

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["BloomEncoding", "compare_encodings", "encode_records", "hash_blocks", "link_encodings", "link_parties", "link_records", "pair_records"]  # fmt: skip

_BLOCK, _SECRET = 8, 32
"""Bytes of a hashed block, and of a party's half of the key."""
_LOOKED_AT = 1000
"""Values of a column whose form is looked at."""
_TILE = 1 << 11
"""Records of each side whose similarities are computed at once."""


@dataclass(frozen=True)
class BloomEncoding(Checked):
    """How records are encoded, blocked and paired; the same at all roles.

    Attributes:
        columns: the fields that are encoded, such as name, street and year of birth.
        blocking: fields of which two records must share at least one to be compared, each as ``column`` or ``column:letters`` for its first letters; none compares all.
        threshold: the smallest coefficient of a pair, above 0 and at most 1.
        bits: length of an encoding, a power of two up to 65,536.
        hashes: positions of each pair of letters, 1 to 32.
        parties: the two roles with records.
        linker: the role that compares.
        of: what the records are: ``"rows"`` of the tables, or their ``"columns"``, whose fields are ``name`` and ``form`` (`describe_columns`).
        label: names the result at its parties.
    """

    columns: Sequence[str]
    blocking: Sequence[str] = ()
    threshold: float = 0.8
    bits: int = 1024
    hashes: int = 15
    parties: Sequence[str] = ("guest", "host")
    linker: str = "linker"
    label: str = "linked"
    of: Literal["rows", "columns"] = "rows"

    def __post_init__(self) -> None:
        for name in ("columns", "blocking", "parties"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        wrong = {
            f"columns={list(self.columns)}": not self.columns,
            f"threshold={self.threshold}": not 0 < self.threshold <= 1,
            f"bits={self.bits}": self.bits not in [1 << i for i in range(3, 17)],
            f"hashes={self.hashes}": not 1 <= self.hashes <= 32,
            f"parties={list(self.parties)} and linker={self.linker!r}": len({*self.parties, self.linker}) != 3,
            f"of={self.of!r}": self.of not in ("rows", "columns"),
        }
        for what, refused in wrong.items():
            if refused:
                raise ConfigError(
                    what,
                    where="BloomEncoding",
                    remedy="use at least one column, a threshold in (0, 1], a power of two of 8 to 65,536 bits, 1 to 32 hashes, two parties and a third as linker",
                )

    def spec(self) -> dict[str, Any]:
        """The settings as plain arguments of a task."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @property
    def width(self) -> int:
        """Bytes of a record that the linker receives: the encoding, and its hashed blocks."""
        return self.bits // 8 + _BLOCK * len(self.blocking)


def _texts(table: Mapping[str, Any], column: str, where: str) -> list[str]:
    if column not in table:
        raise DataError(
            f"there is no column {column!r}.{nearest(column, name_columns(table))}",
            where=where,
            remedy=f"choose from {name_columns(table)}",
        )
    values = table[column]
    found = [normalise_key(value) for value in (values.tolist() if isinstance(values, np.ndarray) else values)]
    return [" ".join(text.casefold().split()) for text in found]


def encode_records(
    table: Mapping[str, Any], encoding: BloomEncoding, key: bytes, where: str = "records"
) -> NDArray[np.uint8]:
    """The encodings of all records, packed bits, ``(records, bits / 8)``.

    Each pair of neighbouring letters of a field, with an edge before and after it, sets ``hashes`` positions: the 16-bit words of BLAKE2b under the key, which also takes in the field's
    number, so that equal letters in two fields are not alike. Capitals and outer or double blanks do not count. An empty field sets nothing.

    Args:
        table: maps a column to its values.
        encoding: the settings.
        key: 32 bytes that both parties have.
        where: the table, for errors.

    Raises:
        DataError: a column is unknown.
    """
    columns = [_texts(table, column, where) for column in encoding.columns]
    out = np.zeros((len(columns[0]), encoding.bits), dtype=bool)
    positions: dict[tuple[int, str], NDArray[np.int64]] = {}
    for number, texts in enumerate(columns):
        for row, text in enumerate(texts):
            edged = f"\x02{text}\x03" if text else ""
            for at in range(len(edged) - 1):
                gram = (number, edged[at : at + 2])
                if gram not in positions:
                    positions[gram] = _positions(gram, encoding, key)
                out[row, positions[gram]] = True
    return np.packbits(out, axis=1, bitorder="little")


def _positions(gram: tuple[int, str], encoding: BloomEncoding, key: bytes) -> NDArray[np.int64]:
    content = gram[0].to_bytes(4, "little") + gram[1].encode()
    digest = hashlib.blake2b(content, key=key, digest_size=2 * encoding.hashes, person=b"atoll fuzzy gram").digest()
    return np.frombuffer(digest, dtype="<u2").astype(np.int64) & (encoding.bits - 1)


def hash_blocks(
    table: Mapping[str, Any], encoding: BloomEncoding, key: bytes, where: str = "records"
) -> NDArray[np.uint64]:
    """The blocks of all records, ``(records, blocking)``: keyed hashes of the fields or their first letters; 0 for an empty field, which is in no block.

    Raises:
        DataError: a column is unknown.
        ConfigError: a number of letters is none.
    """
    found = []
    for number, rule in enumerate(encoding.blocking):
        column, _, letters = rule.partition(":")
        if letters and not (letters.isdecimal() and int(letters)):
            raise ConfigError(f"blocking={rule!r}", where=where, remedy="write column, or column:3 for its first three letters")  # fmt: skip
        texts = _texts(table, column, where)
        cut = [text[: int(letters)] if letters else text for text in texts]
        known = {text: _block_of(number, text, key) for text in set(cut)}
        found.append([known[text] for text in cut])
    rows = len(next(iter(table.values()))) if table else 0
    return np.array(found, dtype=np.uint64).reshape(len(encoding.blocking), rows).T


def _block_of(number: int, text: str, key: bytes) -> int:
    content = number.to_bytes(4, "little") + text.encode()
    digest = hashlib.blake2b(content, key=key, digest_size=_BLOCK, person=b"atoll fuzzyblock").digest()
    return (int.from_bytes(digest, "little") | 1) if text else 0


def compare_encodings(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Dice's coefficient of each pair of encodings, ``(left, right)``; 0 where both are empty."""
    one, other = (np.unpackbits(rows, axis=1).astype(np.float32) for rows in (left, right))
    both = (one @ other.T).astype(np.float64)  # whole numbers up to 65,536 are exact in single precision
    total = one.sum(axis=1, dtype=np.float64)[:, None] + other.sum(axis=1, dtype=np.float64)
    return np.asarray(2 * both / np.maximum(total, 1))


def pair_records(
    left: NDArray[np.uint8],
    right: NDArray[np.uint8],
    threshold: float,
    blocks: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None,
) -> NDArray[np.int64]:
    """Pairs of a left and a right record, ``(pairs, 2)``, one to one: the most similar first, ties by the left place, then the right.

    Args:
        left: encodings.
        right: encodings.
        threshold: the smallest coefficient of a pair.
        blocks: hashed blocks of both sides, ``(records, rules)``; pairs without a common one are not compared.
    """
    seen: dict[int, float] = {}
    for mine, theirs in _blocks_in_common(len(left), len(right), blocks):
        for at, to in product(range(0, len(mine), _TILE), range(0, len(theirs), _TILE)):
            one, other = mine[at : at + _TILE], theirs[to : to + _TILE]
            scores = compare_encodings(left[one], right[other])
            rows, columns = np.nonzero(scores >= threshold)
            pairs = one[rows] * len(right) + other[columns]
            seen.update(zip(pairs.tolist(), scores[rows, columns].tolist(), strict=True))
    taken: tuple[set[int], set[int]] = (set(), set())
    chosen = []
    for pair, _ in sorted(seen.items(), key=lambda one: (-one[1], one[0])):
        i, j = divmod(pair, len(right))
        if i not in taken[0] and j not in taken[1]:
            taken[0].add(i)
            taken[1].add(j)
            chosen.append((i, j))
    return np.array(chosen, dtype=np.int64).reshape(-1, 2)


def _blocks_in_common(left: int, right: int, blocks: Any) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The records of both sides in each block that both have."""
    if blocks is None or not blocks[0].shape[1]:
        return [(np.arange(left), np.arange(right))]
    found = []
    for rules in zip(blocks[0].T, blocks[1].T, strict=True):
        groups = [_places_by_value(values) for values in rules]
        found += [(places, groups[1][value]) for value, places in groups[0].items() if value and value in groups[1]]
    return found


def _places_by_value(values: NDArray[np.uint64]) -> dict[int, NDArray[np.int64]]:
    order = np.argsort(values, kind="stable")
    kinds, starts = np.unique(values[order], return_index=True)
    return dict(zip(kinds.tolist(), np.split(order, starts[1:]), strict=True)) if len(kinds) else {}


def describe_columns(table: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns of a table as records: ``name``, in words, and ``form``: 9 for numbers, and of text the most frequent form, with 9 for a digit and a for letters.

    ``birthDate``, ``birth_date`` and ``BIRTH DATE`` have one name.
    """
    names, forms = [], []
    for name in name_columns(table):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+", " ", str(name))
        column = np.asarray(table[name])
        form = "9" if column.dtype.kind in "biuf" else _form_of(column.tolist())
        names.append(words)
        forms.append(form)
    return {"name": names, "form": forms}


def _form_of(values: Sequence[Any]) -> str:
    texts = [normalise_key(value) for value in values[:_LOOKED_AT]]
    marks = ("".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in text) for text in texts if text)
    forms = Counter(re.sub(r"a+", "a", form) for form in marks)
    return forms.most_common(1)[0][0] if forms else ""


def records_of(table: Mapping[str, Any], encoding: BloomEncoding) -> Mapping[str, Any]:
    """The records that are linked: the table itself, or its columns."""
    return describe_columns(table) if encoding.of == "columns" else {name: table[name] for name in name_columns(table)}


def _contract_of(args: Mapping[str, Any]) -> Contract:
    return link_contract(BloomEncoding(**args["encoding"]), {}, show=bool(args.get("show")))


def link_contract(encoding: BloomEncoding, sizes: Mapping[str, int], show: bool = False) -> Contract:
    """What a linkage sends, and what each role learns.

    Args:
        encoding: the settings.
        sizes: number of records of each party.
        show: whether the parties tell the program which of theirs have a partner.
    """
    one, other = encoding.parties
    pairs, linker = [(one, other), (other, one)], encoding.linker
    frames = [ProtocolFrame("key", a, b, 1, _SECRET, "half of the key of encodings") for a, b in pairs]
    learns = []
    for a, b in pairs:
        rows = sizes.get(a, 0)
        frames += [
            ProtocolFrame("sizes", a, linker, 1, 16, "number of records, least number of pairs"),
            ProtocolFrame("records", a, linker, rows, encoding.width, "encoding and hashed blocks, in secret order"),
            ProtocolFrame("pairs", linker, a, rows, 8, "number of the pair of each record, or none"),
        ]
        learns += [
            Exposure(linker, f"how many records {a} has, how alike they are to others, and how large blocks are", "it has no key", "similarity", a),
            Exposure(b, f"which of its own records have a partner at {a}", "all follow the protocol", "ids", a),
        ]  # fmt: skip
    learns.append(Exposure("the program", "how many records each party has", "", "sizes"))
    learns.append(Exposure("the program", "how many records have a partner", "", "count"))
    learns += [Exposure("the program", f"which records of {a} have a partner", "", "ids", a) for a, _ in pairs if show]
    return Contract("BloomEncoding", tuple(frames), tuple(learns))


@task(contract=_contract_of)
async def link_records(
    island: Island, peers: Peers, me: str, encoding: Mapping[str, Any], show: bool = False
) -> dict[str, Any]:
    """The role of a party with records: keep which of its records have a partner, in an order that both parties have; reply how many they are, and with ``show`` which.

    ``island.state[label]`` has their ``rows``, and of columns their ``names`` too.

    Raises:
        LetterError: the linker or the other party sends something else than the protocol says.
        PolicyError: there are fewer pairs than the party's policy requires.
    """
    settings = BloomEncoding(**encoding)
    (other,) = (party for party in settings.parties if party != me)
    state = await peers.restore({})
    if not state:
        half = island.secret.bytes(_SECRET)
        await peers.channel("key").send(other, np.frombuffer(half, dtype=np.uint8))
        theirs = _require(await peers.channel("key").recv(other), (_SECRET,), np.uint8, other).tobytes()
        halves = (half, theirs) if me == settings.parties[0] else (theirs, half)
        key = hashlib.blake2b(b"".join(halves), digest_size=32, person=b"atoll fuzzy key ").digest()
        where = f"the table of {me}"
        table = records_of(island.data, settings)
        rows = encode_records(table, settings, key, where)
        blocks = hash_blocks(table, settings, key, where).astype("<u8")
        order = np.argsort(island.secret.uint64(len(rows)), kind="stable")
        joined = np.concatenate([rows, np.ascontiguousarray(blocks).view(np.uint8).reshape(len(rows), -1)], axis=1)
        await peers.channel("sizes").send(
            settings.linker, np.array([len(rows), island.rules.min_aligned], dtype=np.int64)
        )
        await peers.channel("records").send(settings.linker, joined[order])
        state = {"order": order}
        await peers.checkpoint(state)
    order = np.asarray(state["order"])
    numbers = _require(await peers.channel("pairs").recv(settings.linker), order.shape, np.int64, settings.linker)
    known = numbers[numbers >= 0]
    if not np.array_equal(np.sort(known), np.arange(len(known))):
        raise _not_expected(settings.linker, "numbers of pairs that are not 0, 1, ...")
    _require_pairs(len(known), island.rules.min_aligned)
    linked = np.empty(len(known), dtype=np.int64)
    linked[known] = order[numbers >= 0]
    before = island.state if isinstance(island.state, dict) else {}
    kept: dict[str, Any] = {"rows": linked}
    if settings.of == "columns":
        names = name_columns(island.data)
        kept["names"] = [names[place] for place in linked.tolist()]
    island.state = {**before, settings.label: kept}
    with contextlib.suppress(PolicyError):  # where the policy lets no result stay, it is in the job's state alone
        island.leave(settings.label, kept)
    told = kept.get("names", linked.tolist()) if show else None
    return {"size": len(order), "count": len(linked), "records": told}


@task(contract=_contract_of)
async def link_encodings(island: Island, peers: Peers, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """The linker's role: pair the records of both parties; reply how many pairs there are.

    Raises:
        LetterError: a party sends other records than it announces.
        PolicyError: there are fewer pairs than a party requires; no party is told its own then.
    """
    settings = BloomEncoding(**encoding)
    state = await peers.restore({})
    if not state:
        got, least = [], 1
        for party in settings.parties:
            size = _require(await peers.channel("sizes").recv(party), (2,), np.int64, party)
            count, least = max(0, int(size[0])), max(least, int(size[1]))
            got.append(_require(await peers.channel("records").recv(party), (count, settings.width), np.uint8, party))
        state = {"records": got, "least": least, "secret": island.secret.bytes(32)}
        await peers.checkpoint(state)
    cut = settings.bits // 8
    one, other = (np.ascontiguousarray(rows) for rows in state["records"])
    blocks = [np.ascontiguousarray(rows[:, cut:]).view("<u8").reshape(len(rows), -1) for rows in (one, other)]
    pairs = pair_records(one[:, :cut], other[:, :cut], settings.threshold, (blocks[0], blocks[1]))
    _require_pairs(len(pairs), state["least"])
    seed = int.from_bytes(state["secret"], "little")
    pairs = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).permutation(pairs)
    for party, rows, mine in zip(settings.parties, (one, other), pairs.T, strict=True):
        numbers = np.full(len(rows), -1, dtype=np.int64)
        numbers[mine] = np.arange(len(pairs))
        await peers.channel("pairs").send(party, numbers)
    return {"count": len(pairs)}


async def link_parties(fed: Federation, encoding: BloomEncoding, *, show: bool = False) -> dict[str, Any]:
    """Link the records of two parties in one session with the linker; a program awaits it. Return the ``count`` of pairs, the ``sizes``, and with ``show`` the ``records`` of each party in their order.

    Each party keeps ``island.state[label]["rows"]``: the k-th row of both is the k-th pair. The roles have the names of their parties.
    """
    args = {"encoding": encoding.spec()}
    roles = {party: (party, link_records.with_args(me=party, show=show, **args)) for party in encoding.parties}
    found = await fed.session({**roles, encoding.linker: (encoding.linker, link_encodings.with_args(**args))})
    told = {party: found[party] for party in encoding.parties}
    more = {"records": {party: list(one["records"]) for party, one in told.items()}} if show else {}
    return {
        "count": found[encoding.linker]["count"],
        "sizes": {party: one["size"] for party, one in told.items()},
        **more,
    }


def _require_pairs(count: int, least: int) -> None:
    if least > 1 and count < least:
        raise PolicyError(f"fewer than {least} records have a partner", where="policy", remedy="link larger tables, or lower min_aligned in the site's policy")  # fmt: skip


def _require(received: Any, shape: tuple[int, ...], dtype: Any, party: str) -> NDArray[Any]:
    if isinstance(received, np.ndarray) and received.shape == shape and received.dtype == np.dtype(dtype):
        return received
    form = f"{received.dtype} {received.shape}" if isinstance(received, np.ndarray) else type(received).__name__
    raise _not_expected(party, f"{form} in place of {np.dtype(dtype)} {shape}")


def _not_expected(party: str, what: str) -> LetterError:
    return LetterError(
        f"{party} sent {what}", where="psi", remedy="look at the party that sent it: it does not follow the protocol"
    )
