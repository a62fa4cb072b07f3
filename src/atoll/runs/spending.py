"""The privacy ledger of a run: its own, or one that several runs spend from; and what the islands' policies demand of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import CheckpointError
from atoll.core.event import Admitted, Closed, Ledger
from atoll.core.persistence.files import write_bytes
from atoll.core.requests.policy import SitePolicy, policy_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation, Program
    from atoll.core.job import Prepared
    from atoll.core.world import World
    from atoll.privacy import Demand, LedgerAccount

__all__ = ["account_of", "admitted", "close_spending", "ledgers_of", "seen_by", "spending_of"]

_LEDGER = "ledger.jsonl"
_FILE = "spending.json"
"""In a run's folder of checkpoints: which ledger it spends from, and as which job."""


def spending_of(name: str, ledger: Path | None, folder: Path | None, *, resume: bool) -> Ledger | None:
    """Return the ledger that outlives a run; ``None`` if the run has one of its own.

    A run is a job of the ledger under its name and six random letters, so that no two runs are taken for each other. Its folder remembers them: a resumed
    run is the same job.

    Args:
        name: the run's name.
        ledger: the ledger's file.
        folder: the run's folder of checkpoints; ``None`` if it has none.
        resume: whether it continues.

    Raises:
        CheckpointError: it is resumed with another ledger than it began with.
    """
    note = None if folder is None else folder / _FILE
    if resume and note is not None and (note.exists() or (folder / "ledger.jsonl").exists()):  # type: ignore[operator]
        began = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {"ledger": None, "job": ""}
        if began["ledger"] != (None if ledger is None else str(ledger.resolve())):
            raise CheckpointError(
                f"the run spends from the ledger {began['ledger'] or 'in its own folder'}, not from {ledger or 'one of its own'}",
                where=str(folder),
                remedy="resume it with the ledger that it began with",
            )
        return None if ledger is None else Ledger(ledger, str(began["job"]), complete=True)
    if ledger is None:
        return None
    job = f"{name}-{secrets.token_hex(3)}"
    if note is not None:
        write_bytes(note, json.dumps({"ledger": str(ledger.resolve()), "job": job}).encode())
    return Ledger(ledger, job, complete=True)


def ledgers_of(folder: Path) -> list[tuple[str, Path]]:
    """Find the privacy ledgers of a folder: (job, file) of each run that has one of its own, and ``""`` for those of several jobs.

    Args:
        folder: a site's or a server's, a run folder, or one of several runs, such as a sweep's; or a ledger itself.
    """
    if folder.is_file():
        return [("", folder)]
    if (folder / "owner").exists() and (folder / _LEDGER).exists():  # a site's: it has what all of its jobs have spent
        return [("", folder / _LEDGER)]
    found: dict[Path, str] = {}
    for path in sorted(folder.rglob(_FILE)):
        found[Path(json.loads(path.read_text(encoding="utf-8"))["ledger"])] = ""
    for path in sorted(folder.rglob(_LEDGER)):
        run = path.parent
        while run.name in ("checkpoints", "state") and run != folder:
            run = run.parent
        found.setdefault(path.resolve(), run.resolve().name if path.parent != folder else "")
    return [(name, path) for path, name in found.items() if path.exists()]


def account_of(ledgers: Sequence[tuple[str, Path]]) -> LedgerAccount:
    """Return what several ledgers say together, each under its own job.

    Args:
        ledgers: as `ledgers_of` finds them.

    Raises:
        CheckpointError: one of them is damaged or was changed.
    """
    from atoll.privacy import LedgerAccount

    lines: list[dict[str, Any]] = []
    for job, path in ledgers:
        lines += [{**({"job": job} if job else {}), **line} for line in Ledger(path, readable=True).lines()]
    return LedgerAccount(lines).update()


def admitted(prepared: Prepared, title: str) -> Program:
    """Return a job's program, which begins only if the islands' policies admit what the job may spend.

    Args:
        prepared: the job.
        title: the job, as errors name it.
    """

    async def program(fed: Federation) -> Any:
        fed.world.ledger.seen_by = seen_by(prepared)
        _admit(fed.world, title, prepared)
        return await prepared.program(fed)

    return program


def seen_by(prepared: Prepared) -> str:
    """Who sees a reply that has no noise: only those whom the job's mechanism trusts; see `atoll.core.event.NonPrivate`."""
    against = getattr(prepared, "against", "server")
    return {"model": "clients", "clients": "server"}.get(against, "everyone")


def _admit(world: World, title: str, prepared: Prepared) -> None:
    """Refuse a job that an island's policy does not find private enough, or too expensive, and guard the budgets while it runs.

    Args:
        world: the run's world.
        title: the job, as errors name it.
        prepared: the job.

    Raises:
        PolicyError: names the island, what the job would spend and what is left.
    """
    demands = {name: demand for name in world.population.names if (demand := _demand(world, name)) is not None}
    if not demands:
        return
    from atoll.privacy import LedgerGuard

    sizes = getattr(world.population, "sizes", None)
    allowance = LedgerGuard(world.ledger, demands.get)
    rows = {name: 0 if sizes is None else int(sizes[world.roster.position(name)]) for name in demands}
    by_rows = {size: prepared.most(size) for size in set(rows.values())}
    allowance.admit(world.ledger.job, title, {name: by_rows[size] for name, size in rows.items()})


def close_spending(world: World) -> None:
    """Note in a ledger that outlives the run that the run has ended."""
    ledger = world.ledger
    if ledger.job and any(line["kind"] == Admitted.kind and line.get("job") == ledger.job for line in ledger.lines()):
        ledger.append(Closed(), "*", job=ledger.job)


def _demand(world: World, name: str) -> Demand | None:
    policy = policy_of(world.policy, name) if isinstance(world.policy, Mapping) else world.policy
    return policy.privacy if isinstance(policy, SitePolicy) else None  # type: ignore[return-value]
