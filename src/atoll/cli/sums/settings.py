"""The settings of one secure sum."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError
from atoll.testing.lying import MOVES, TARGETS, Findings, attack_all

__all__ = ["SumSettings", "drops_of", "findings_table", "number_of", "run_attacks"]


STEPS = ("share", "masked", "reveal")


@dataclass(frozen=True)
class SumSettings:
    """What people type.

    Attributes:
        bits: bits of a value or of a code.
        modulus_bits: bits of a word.
        value_range: largest magnitude of a value; by default that of the arrays.
        block: entries of a block.
        codewords: codewords of a codebook.
        keep: share of the entries that are kept.
        threshold: parties that open the sum, a number or a share.
        neighbours: parties that each shares a mask with.
        loss: expected share of parties that drop out.
        corrupt: share of parties that may collude with the server.
        active: whether the server may lie.
        drop: step -> number of parties that drop out there.
        norm: largest L2 norm of a party's array; by default that of the arrays.
        seed: of the choice of who drops out, and of all that is public.
    """

    bits: int | None = None
    modulus_bits: int | None = None
    value_range: float | None = None
    block: int | None = None
    codewords: int | None = None
    keep: float | None = None
    threshold: float | int | None = None
    neighbours: int | None = None
    loss: float = 0.1
    corrupt: float = 0.05
    active: bool = False
    drop: dict[str, int] = field(default_factory=dict)
    norm: float | None = None
    seed: int = 0


def number_of(text: str | None) -> float | int | None:
    """A threshold as typed: a whole number of parties, or a share with a point.

    Raises:
        ConfigError: it is no number.
    """
    if text is None:
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ConfigError(
            f"--threshold {text}", remedy="use a number of parties such as 6, or a share such as 0.6"
        ) from None


def drops_of(text: str | None) -> dict[str, int]:
    """Losses as typed: ``share:1,masked:2``.

    Raises:
        ConfigError: a step is not known, or a number makes no sense.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        step, _, count = part.strip().partition(":")
        if step not in STEPS or not count.isdigit() or step in found:
            raise ConfigError(
                f"--drop {text}", remedy=f"use steps of {', '.join(STEPS)} with numbers, such as share:1,masked:2"
            )
        found[step] = int(count)
    return found


# Attacks on secure sums by a server that lies: what ``atoll secure attack`` runs and shows.


def run_attacks(protocol: str, moves: Collection[str], real: bool, note: Callable[[str], None]) -> Findings:
    """Attack one protocol or all.

    Args:
        protocol: its name, or ``"all"``.
        moves: names of moves; all, if there are none.
        real: between real site processes.
        note: says which protocol is attacked.

    Raises:
        ConfigError: there is no such protocol or move.
    """
    names = tuple(TARGETS) if protocol == "all" else (protocol,)
    return attack_all(names, moves=tuple(moves) or tuple(MOVES), real=real, told=lambda name: note(f"attacking {name}"))


def findings_table(found: Findings) -> PlainTable:
    """The findings, a row a move and a column a protocol."""
    table = PlainTable()
    table.add_column("move")
    for name in found.protocols:
        table.add_column(name)
    moves = dict.fromkeys(move for rows in found.protocols.values() for move in rows)
    for move in moves:
        table.add_row(move, *(rows.get(move, "") for rows in found.protocols.values()))
    return table
