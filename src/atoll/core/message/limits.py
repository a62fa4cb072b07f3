"""Limits on the cost of a message, checked before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from atoll.core.errors import ConfigError

__all__ = ["DEFAULT_LIMITS", "Limits"]

# The tree is walked by recursion, with two frames per level; Python's own limit is 1000 frames.
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one message, checked before anything of that size is allocated.

    Decoding allocates at most ``max_bytes`` for the message itself. Array leaves are views of it.
    In addition there are the Python objects of the tree (some 300 bytes for each of ``max_leaves``), the
    ``str`` leaves (up to 4 bytes for a byte on the wire, in total at most ``4 * max_text_bytes``),
    the ``bytes`` leaves (a copy each) and unpacked null masks (at most one byte for an element).

    Attributes:
        max_bytes: size of the whole message in bytes.
        max_header_bytes: size of its header in bytes: the tree without its buffers.
        max_depth: depth of nested containers; at most 200.
        max_leaves: leaves of the tree; each list, tuple or dict counts too.
        max_int_bits: bits of one ``int``.
        max_key_bytes: bytes of one dict key in UTF-8.
        max_text_bytes: bytes of all ``str`` leaves together in UTF-8 (this does not limit text arrays:
            they are checked in place and stay bytes).

    Raises:
        ConfigError: a limit is not a positive integer, or ``max_depth`` is above 200.
    """

    max_bytes: int = 16 << 30
    max_header_bytes: int = 64 << 20
    max_depth: int = 64
    max_leaves: int = 1_000_000
    max_int_bits: int = 1 << 16
    max_key_bytes: int = 1 << 12
    max_text_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{field.name} is {value!r}",
                    where="Limits",
                    remedy="give a positive integer",
                )
        if self.max_depth > _DEEPEST:
            raise ConfigError(
                f"max_depth is {self.max_depth}, above {_DEEPEST}",
                where="Limits",
                remedy="flatten the tree: trees are walked by recursion",
            )


DEFAULT_LIMITS = Limits()
"""16 GiB a message, a 64 MiB header, depth 64, a million leaves."""
