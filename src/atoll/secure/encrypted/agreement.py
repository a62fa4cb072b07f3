"""What all parties of one encrypted sum are told, and check before they encrypt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.errors import AtollError, PolicyError

from ..ballot import Electorate
from ..words import FixedPoint, WordLayout
from .lanes import Lane, lanes_of
from .scheme import Scheme, scheme_of
from .tags import tag_form

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree

    from .digits import Digits

__all__ = ["EncryptedAgreement", "key_hash"]


@dataclass(frozen=True)
class EncryptedAgreement:
    """The terms of one encrypted sum.

    Attributes:
        names: the cohort, in order.
        scheme: of encryption.
        least: smallest number of parties in the sum.
        threshold: how many parties decrypt together; 0 if a key holder does.
        codec: how numbers become words.
        bound: largest magnitude of an update's values, as the uplink promises it.
        signs: whether votes are -1, 0 and 1; see `WordLayout`.
        active: whether the parties of a threshold open only what they have added up themselves.
    """

    names: tuple[str, ...]
    scheme: Scheme
    least: int
    threshold: int
    codec: FixedPoint
    bound: float | None = None
    signs: bool = True
    active: bool = False

    def message(self) -> Tree:
        """The agreement as a message."""
        own = {name: getattr(self, name) for name in ("least", "threshold", "bound", "signs", "active")}
        return {**own, "names": list(self.names), "scheme": self.scheme.spec(), "codec": asdict(self.codec)}

    @classmethod
    def of(cls, message: Any, *, real: bool) -> EncryptedAgreement:
        """The inverse of `message`, checked.

        Args:
            message: what the server sent.
            real: whether this is no simulation, so that keys that can be broken are refused.

        Raises:
            PolicyError: it is no agreement, or one that protects nobody.
        """
        try:
            settings = {
                "names": tuple(message["names"]),
                "scheme": scheme_of(message["scheme"]),
                "codec": FixedPoint(**message["codec"]),
            }
            made = cls(**{**message, **settings})
            sound = 2 <= made.least <= len(set(made.names)) == len(made.names) and (
                made.threshold == 0 or 2 <= made.threshold <= len(made.names)
            )
        except (TypeError, KeyError, ValueError, AtollError) as error:
            raise PolicyError(
                f"terms of an encrypted sum that cannot be read: {error}", where="encrypted sum"
            ) from error
        if not sound:
            raise PolicyError(
                f"an encrypted sum of {len(made.names)} parties, at least {made.least}, with a threshold of {made.threshold}",
                where="encrypted sum",
                remedy="look at the server: a sum needs two parties and more",
            )
        if real and getattr(made.scheme, "insecure", False):
            raise PolicyError(
                f"keys of {getattr(made.scheme, 'key_bits', 0)} bits, which can be broken",
                where="encrypted sum",
                remedy="use key_bits=2048 or more; insecure=True is for tests",
            )
        return made

    @property
    def fingerprint(self) -> bytes:
        """A hash of the terms. Who makes the keys tells it to the parties: a server that tells them other terms is refused."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def electorate(self) -> Electorate:
        """Who votes on the set of the sum."""
        return Electorate(self.names, self.least, self.fingerprint)

    def layout(self, form: Tree) -> WordLayout:
        """The layout of totals of a form."""
        return WordLayout(form, self.codec, len(self.names), self.bound, signs=self.signs)

    def lanes(self, layout: WordLayout) -> list[Lane]:
        """The lanes of a layout as numbers to encrypt."""
        return lanes_of(layout, self.scheme.most(len(self.names)))

    def form(self, lanes: list[Lane]) -> list[Digits]:
        """The arrays of a ciphertext: those of the lanes, and with a key holder the tags."""
        arrays = [each for lane in lanes for each in lane.form]
        return arrays if self.threshold else [*arrays, tag_form(len(self.names))]

    def require_set(self, kept: list[str], me: str = "") -> None:
        """Refuse to open a sum of too few, or one of others than the cohort.

        Raises:
            PolicyError: it is one.
        """
        if len(set(kept)) != len(kept) or not set(kept) <= set(self.names) or len(kept) < self.least:
            raise PolicyError(
                f"a sum of {len(kept)} parties, {len(set(kept) & set(self.names))} of them in the cohort, with at least {self.least}",
                where="encrypted sum",
                remedy="look at the server: it asks for a sum that nobody agreed to",
            )
        if me and me not in kept:
            raise PolicyError(
                "a sum without this party's own numbers",
                where=me,
                remedy="look at the server: it asks for a sum that nobody agreed to",
            )


def key_hash(public: Tree) -> bytes:
    """Return a hash of a public key, which its maker sends to the parties in sealed letters."""
    return bytes.fromhex(M.fingerprint(public))
