"""Run folders as they are saved today: jobs of the corpus, killed in their second round, and a ledger that two jobs spent from.

``saved/NAME.zip`` has each. Whatever changes, they open, and the jobs go on from them to the results that the corpus has. From the root of the repository:

    python -m tests.support.saved             # write those that are missing; none is ever written again
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from . import corpus

PLACE = Path(__file__).with_name("saved")
KILLED = {
    "private": "CentralDP",
    "masked": "SecureAggregation",
    "gossip": "Gossip",
    "in-flight": "FedBuff",
    "program": "program",
    "configuration": "configuration",
}
"""Name of the file -> job of the corpus."""
LEDGER = "ledger"


def unpack(name: str, folder: Path) -> Path:
    """Unpack a saved folder, and return it."""
    with zipfile.ZipFile(PLACE / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder / "run"


def spend(ledger: Path, folder: Path) -> Any:
    """Run a private job that spends from a shared ledger."""
    return corpus.JOBS["CentralDP"](folder, ledger=ledger)


def _kill(*_: Any) -> None:
    os._exit(3)


def _second(row: dict[str, Any]) -> None:
    if row.get("round") == 2:
        _kill()


def _start(name: str, folder: Path) -> None:
    if name == "program":  # it has no rounds, and makes this stage after its checkpoint
        corpus.QSGD = _kill  # type: ignore[assignment, misc]
        corpus.JOBS[name](folder)
    corpus.JOBS[KILLED[name]](folder, on_record=_second)


def _pack(name: str, root: Path) -> None:
    with zipfile.ZipFile(PLACE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.name != ".lock":
                archive.writestr(
                    zipfile.ZipInfo(file.relative_to(root).as_posix()), file.read_bytes(), zipfile.ZIP_DEFLATED, 9
                )


def _write(name: str, root: Path, aside: Path) -> None:
    """Make what a file holds in ``root``; what it does not hold goes ``aside``."""
    if name == LEDGER:
        for job in ("one", "two"):
            (aside / job).mkdir()
            spend(root / "ledger.jsonl", aside / job / "run")
        return
    child = multiprocessing.get_context("fork").Process(target=_start, args=(name, root / "run"))
    child.start()
    child.join()
    if child.exitcode != 3:
        sys.exit(f"{name} was not killed, but ended with {child.exitcode}")


def main() -> None:
    """Write what is missing."""
    PLACE.mkdir(exist_ok=True)
    for name in [*KILLED, LEDGER]:
        if not (PLACE / f"{name}.zip").exists():
            with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as aside:
                _write(name, Path(place), Path(aside))
                _pack(name, Path(place))


if __name__ == "__main__":
    main()
