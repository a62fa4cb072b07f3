"""What an end is told that is not let in, and how it understands it: the same words over every transport."""

from __future__ import annotations

from atoll.core.errors import IdentityError

__all__ = ["OWN", "reason", "refusal"]

OWN = "this end's certificate"
"""Where an ``IdentityError`` of a dialler lies if it is this end that is not let in; else it does not let the other end in."""

_LONGEST = 1000
_REMEDY = ". Remedy: "
_GENERAL = "check that both ends use kits of the same project that have not expired, and the server's name"


def reason(error: IdentityError) -> str:
    """A refusal as the other end is told: what is wrong and what to do, and nothing of places here."""
    return (f"{error.what}{_REMEDY}{error.remedy}" if error.remedy else error.what)[:_LONGEST]


def refusal(address: str, told: str) -> IdentityError:
    """The error of the end that is not let in.

    Args:
        address: whom it dialled.
        told: what it was told; cut at 1,000 characters, and what cannot be printed is left out.
    """
    plain = "".join(character for character in told[:_LONGEST] if character.isprintable())
    what, _, remedy = plain.partition(_REMEDY)
    return IdentityError(f"no connection to {address}: {what}", where=OWN, remedy=remedy or _GENERAL)
