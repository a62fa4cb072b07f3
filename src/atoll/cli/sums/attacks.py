"""Attacks on secure sums by a server that lies: what ``atoll secure attack`` runs and shows."""

from __future__ import annotations

from collections.abc import Callable, Collection

from atoll.cli.output import PlainTable
from atoll.testing.lying import MOVES, TARGETS, Findings, attack_all

__all__ = ["findings_table", "run_attacks"]


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
