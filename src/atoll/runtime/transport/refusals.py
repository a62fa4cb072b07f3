"""What a refused end is told, and how it understands it: the same words over every transport."""

from __future__ import annotations

from atoll.core.errors import IdentityError

__all__ = ["OWN", "reason", "refusal"]

OWN = "this end's certificate"
"""``where`` of a dialler's ``IdentityError`` if the other end refuses this one; otherwise this end refuses the other."""

_LONGEST = 1000
_REMEDY = ". Remedy: "
_GENERAL = "check that both ends use kits of the same project that have not expired, and the server's name"


def reason(error: IdentityError) -> str:
    """Return a refusal as the other end is told: what is wrong and what to do, without places on this machine."""
    return (f"{error.what}{_REMEDY}{error.remedy}" if error.remedy else error.what)[:_LONGEST]


def refusal(address: str, told: str) -> IdentityError:
    """Return the error of the end that is refused.

    Args:
        address: the address that it dialled.
        told: what it was told; cut at 1,000 characters, without unprintable ones.
    """
    plain = "".join(character for character in told[:_LONGEST] if character.isprintable())
    what, _, remedy = plain.partition(_REMEDY)
    return IdentityError(f"no connection to {address}: {what}", where=OWN, remedy=remedy or _GENERAL)
