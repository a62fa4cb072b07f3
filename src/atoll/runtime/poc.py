"""Proof of concept: a project on one machine, with real processes, certificates and connections."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError, DataError, JobError
from atoll.core.extras import need
from atoll.core.federation.reducer import Plain
from atoll.learn.selection.uniform import Schedule
from atoll.runs import parse_data
from atoll.simulation import simulate

from .daemon.processes import Process
from .provision import Kit, ProjectConfig, provision
from .provision.project import AdminConfig, PartyConfig, ServerConfig, is_name

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = [
    "OTHERS",
    "SECURE_TERMS",
    "Poc",
    "compared",
    "digits_at",
    "divide_rows",
    "helper_names",
    "name_sites",
    "parts_of",
    "site_names",
    "survivors_of",
    "write_parts",
]


# ------------------------------------------------------------------ proof of concept: a project on one machine, with real processes, certificates and connections


_LOG = logging.getLogger("atoll.runtime")
_START = 60.0
"""Seconds for a daemon to start."""
_CONFINE = "ATOLL_CONFINE"
"""How daemons confine jobs, as `atoll server` and `atoll site` read it."""
_HOST = "127.0.0.1"
OTHERS = ("server", "admin", "auditor", "analyst")
"""Names that no site of a trial has."""


def helper_names(needed: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """A helper for each party that a job needs beside its clients: under the party's name where a kit can have it; name -> what it plays.

    Args:
        needed: party -> role.
        taken: names of everybody else.
    """
    found: dict[str, str] = {}
    for number, (party, role) in enumerate(needed.items(), 1):
        used = {name.lower() for name in (*taken, *found)}
        found[party if is_name(party) and party.lower() not in used else f"helper-{number}"] = role
    return found


def site_names(count: int) -> list[str]:
    """``site-1``, ``site-2``, ..."""
    return [f"site-{i + 1}" for i in range(count)]


def digits_at(names: list[str], alpha: float = 0.3, seed: int = 0) -> Islands:
    """Return the bundled digits, divided among sites with skewed labels: the same rows that the simulator would give its clients."""
    from atoll.data import Islands

    partition = {"name": "dirichlet", "parties": len(names), "alpha": alpha, "seed": seed}
    whole = parse_data({"source": "digits", "partition": partition}).islands()
    return Islands.from_datasets({name: whole.shard(i).dataset() for i, name in enumerate(names)}, test=whole.test)


def write_parts(islands: Islands, folder: Path) -> dict[str, Path]:
    """Write the rows of each client, and of each other party, into a folder of its own, as a site would have them; return site -> file."""
    made = {}
    for name, rows in {**{str(shard.name): shard.dataset() for shard in islands}, **islands.others}.items():
        file = folder / name / "data.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {
            column: np.asarray(rows[column]) for column in ("x", "y", "labelled") if column in rows
        }
        if rows.about.missing_features:
            arrays["missing_features"] = np.array(True)
        np.savez(file, labels=np.array(list(rows.about.labels)), **arrays)
        made[name] = file
    return made


_KINDS = (".csv.gz", ".csv", ".parquet", ".npz", ".yaml", ".yml", ".sqlite", ".sqlite3", ".db", ".duckdb")
"""What a folder of ``atoll poc --data`` may hold for a site, as ``atoll site --data`` takes it; a folder is one too."""
_TABLES = (".csv.gz", ".csv", ".parquet", ".npz")
"""Those of them whose rows can be divided."""


def name_sites(words: str | None) -> list[str]:
    """Return the sites that ``--sites`` names: as many as its number, or the names between commas.

    Raises:
        ConfigError: no number of 1 to 64 and no names.
    """
    words = "3" if words is None else words
    names = site_names(min(int(words), 1000)) if words.isdigit() else [word.strip() for word in words.split(",")]
    wrong = next((name for name in names if not is_name(name) or name.lower() in OTHERS), None)
    if wrong is not None or not 1 <= len(names) <= 64 or len({name.lower() for name in names}) < len(names):
        what = f"--sites {words}" if wrong is None else f"{wrong!r} cannot be the name of a site"
        raise ConfigError(what, where="atoll poc", remedy="use a number from 1 to 64, or names such as north,south")
    return names


def parts_of(data: Path, words: str | None, folder: Path, seed: int, others: Collection[str] = ()) -> dict[str, Path]:
    """Return whose data are where: of a folder with something for each site, or of one table, whose rows are divided.

    Args:
        data: a table, or a folder. Each file or folder in it belongs to the site of its name.
        words: ``--sites``: names choose among them, or are those that share one table; a number says among how many sites.
        folder: where the parts of a divided table are written.
        seed: which rows go to which site.
        others: names of helpers, which get what has their name and share no table.

    Raises:
        ConfigError: the data are not those of these sites.
        DataError: the table cannot be divided.
    """
    if not data.exists():
        raise ConfigError(f"there is no file or folder {str(data)!r}", where="--data", remedy="correct the path")
    files = sorted(data.iterdir()) if data.is_dir() else [data]
    found: dict[str, Path] = {}
    for file in files:
        kind = next((kind for kind in _KINDS if file.name.lower().endswith(kind)), "")
        if file.name.startswith((".", "_")) or not (kind or file.is_dir()):
            continue
        name = file.name[: -len(kind)] if kind and not file.is_dir() else file.name
        if name in found:
            raise ConfigError(
                f"{found[name].name} and {file.name} are both of {name!r}", where="--data", remedy="rename one"
            )
        found[name] = file
    played = {name: found.pop(name) for name in others if name in found}
    wanted = None if words is None else name_sites(words)
    if (
        len(found) == 1
        and (only := next(iter(found.values()))).name.lower().endswith(_TABLES)
        and wanted != list(found)
    ):
        return {**divide_rows(only, wanted or name_sites(None), folder, seed), **played}
    if words is None or words.isdigit():
        names = name_sites(",".join(found)) if found else []
        fits = words is None or len(names) == int(words)
    else:
        names = wanted or []
        fits = set(names) <= set(found)
    if not names or not fits:
        held = ", ".join(found) or "nothing that a site could have"
        raise ConfigError(
            f"--sites {words or '3'}, and {str(data)!r} has {held}",
            where="--data",
            remedy="name a folder with one table, database or YAML file a site, called as the site is; or one table, to divide its rows",
        )
    return {**{name: found[name] for name in names}, **played}


def divide_rows(table: Path, names: list[str], folder: Path, seed: int) -> dict[str, Path]:
    """Divide the rows of a table evenly and at random among sites, each in a folder of its own; their text is not changed.

    Raises:
        DataError: it cannot be read, or has fewer rows than there are sites.
    """
    kind = next(kind for kind in _TABLES if table.name.lower().endswith(kind))
    try:
        count, write = (_numpy_rows if kind == ".npz" else _parquet_rows if kind == ".parquet" else _text_rows)(table)
    except (OSError, ValueError, UnicodeError) as error:
        raise DataError(
            f"it cannot be read: {error}", where=table.name, remedy="give a CSV, Parquet or .npz file"
        ) from error
    if count < len(names):
        raise DataError(f"{count} rows for {len(names)} sites", where=table.name, remedy="use fewer sites")
    order, made = np.random.default_rng(seed).permutation(count), {}
    for number, name in enumerate(names):
        made[name] = folder / name / table.name
        made[name].parent.mkdir(parents=True, exist_ok=True)
        write(np.sort(order[number :: len(names)]), made[name])
    return made


_Rows = tuple[int, Callable[[Any, Path], None]]


def _text_rows(table: Path) -> _Rows:
    """The rows of a CSV file as they are: a line break between quotes ends none."""
    opens = gzip.open if table.name.lower().endswith(".gz") else open
    with opens(table, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    rows, open_row = [], b""
    for line in lines:
        open_row += line
        if open_row.count(b'"') % 2 == 0:
            rows.append(open_row)
            open_row = b""
    header, rows = rows[0] if rows else b"", [row for row in [*rows[1:], open_row] if row.strip()]

    def write(chosen: Any, file: Path) -> None:
        with opens(file, "wb") as out:
            out.writelines(row if row.endswith(b"\n") else row + b"\n" for row in [header, *(rows[i] for i in chosen)])

    return len(rows), write


def _numpy_rows(table: Path) -> _Rows:
    """The rows of an archive: of the arrays that have as many as ``x``; other arrays are everyone's."""
    with np.load(table, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    lead = next((arrays[name] for name in ("x", "x_train") if name in arrays), None)
    if lead is None:
        raise ValueError("no array 'x'")
    per_row = {
        name
        for name, values in arrays.items()
        if np.ndim(values) and len(values) == len(lead) and name not in ("features", "labels")
    }

    def write(chosen: Any, file: Path) -> None:
        parts: dict[str, Any] = {name: values[chosen] if name in per_row else values for name, values in arrays.items()}
        np.savez(file, **parts)

    return len(lead), write


def _parquet_rows(table: Path) -> _Rows:
    parquet = need("pyarrow.parquet", "arrow", "dividing a Parquet file")
    whole = parquet.read_table(table)
    return whole.num_rows, lambda chosen, file: parquet.write_table(whole.take(chosen), file)


class _Daemon:
    """A daemon's process and its output."""

    module = "atoll.cli"

    def __init__(self, name: str, arguments: list[str], on_line: Callable[[str, str], None]) -> None:
        self.name = name
        self.arguments = arguments
        self.process: Process | None = None
        self._on_line = on_line
        self._said: asyncio.Future[dict[str, Any]] | None = None
        self._last: list[str] = []

    async def start(self, folder: Path) -> dict[str, Any]:
        """Start it; return what it says once it serves.

        Raises:
            JobError: it ended before that, or took too long.
        """
        self._said = asyncio.get_running_loop().create_future()
        self.process = await Process.start(
            self.module, lambda fd: [*self.arguments, "--json"], folder=folder, on_line=self._line,
            environment={name: os.environ[name] for name in (_CONFINE,) if name in os.environ},
        )  # fmt: skip
        self.process.socket.close()
        ended: asyncio.Future[Any] = asyncio.create_task(self.process.wait())
        await asyncio.wait({self._said, ended}, timeout=_START, return_when=asyncio.FIRST_COMPLETED)
        said = self._said.result() if self._said.done() else {}
        if "error" not in said and said:
            return said
        if said:
            await ended
            self._last = [str(said["error"]["what"])]
        why = f"it ended with exit code {ended.result()}" if ended.done() else f"it took more than {_START:g} s"
        raise JobError(
            f"`atoll {self.arguments[0]}` did not start: {why}; {' / '.join(self._last[-3:])}",
            where=self.name,
            remedy="see its log in the folder of --folder",
        )

    def _line(self, line: str) -> None:
        self._last = [*self._last[-20:], line]
        if self._said is not None and not self._said.done() and line.startswith("{"):
            with contextlib.suppress(ValueError):
                self._said.set_result(json.loads(line))
                return
        self._on_line(self.name, line)


class Poc:
    """A provisioned project whose server and sites run as processes, while this context is entered.

    Args:
        folder: kits, data and the folders of all daemons; those of an earlier run continue.
        data: site, or helper with rows of its own -> what follows ``--data``, with further options if there are any.
        transport: how bytes travel.
        on_line: called with (node, line) for each line that the daemons write.
        direct: let the sites listen for each other, for jobs that say ``direct: true``.
        helpers: sites without clients: name -> what it plays.

    Attributes:
        address: where the server listens.
    """

    def __init__(
        self,
        folder: Path,
        data: Mapping[str, list[str]],
        *,
        transport: str = "tcp",
        on_line: Callable[[str, str], None] = lambda node, line: None,
        direct: bool = False,
        helpers: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.address = f"{_HOST}:0"
        self._data = {**{name: [] for name in helpers or {}}, **data}
        self._on_line = on_line
        self._direct = ["--direct", f"{_HOST}:0"] if direct else []
        self._daemons: dict[str, _Daemon] = {}
        project = ProjectConfig.model_validate(
            {
                "project": "poc",
                "servers": [ServerConfig(name="server", hosts=[_HOST], listen=_HOST)],
                "sites": [
                    PartyConfig(name=name, org=name, direct=[_HOST]) for name in data if name not in (helpers or {})
                ],
                "helpers": {name: {"role": role, "direct": [_HOST]} for name, role in (helpers or {}).items()},
                "admins": [
                    AdminConfig(name="admin", org="poc"),
                    AdminConfig(name="auditor", org="poc", role="auditor"),
                    AdminConfig(name="analyst", org="poc", role="analyst"),
                ],
                "transport": transport,
            }
        )
        provision(project, self.folder / "kits")

    def kit(self, name: str) -> Kit:
        """Return the kit of a party."""
        return Kit.read(self.folder / "kits" / name)

    async def __aenter__(self) -> Self:
        try:
            await self.start("server")
            await asyncio.gather(*(self.start(name) for name in self._data))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def start(self, name: str) -> None:
        """Start a daemon, for the first time or again; returns once it serves."""
        place = str(self.folder / "run" / name)
        kit = str(self.folder / "kits" / name)
        if name == "server":
            arguments = ["server", kit, "--folder", place, "--listen", self.address]
        else:
            # Jobs of a trial share the machine, so no site blocks another by asking for all cores.
            resources = ["--cpus", "64", "--memory", "1TiB", "--gpus", "0"]
            arguments = [
                "site",
                kit,
                *(["--data", *self._data[name]] if self._data[name] else []),
                "--folder",
                place,
                *resources,
                *self._direct,
                "--server",
                self.address,
            ]
        daemon = self._daemons[name] = _Daemon(name, arguments, self._on_line)
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
        said = await daemon.start(Path(place))
        if name == "server":
            self.address = str(said["listening"])

    def process(self, name: str) -> Process:
        """Return the process of a daemon."""
        found = self._daemons[name].process
        if found is None:
            raise JobError(f"{name} was not started", where="poc", remedy="enter it first")
        return found

    async def _stop(self) -> None:
        """Stop the daemons, sites first, so that the server sees no site as lost."""
        running = {name: daemon.process for name, daemon in self._daemons.items() if daemon.process is not None}
        await asyncio.gather(*(process.stop() for name, process in running.items() if name != "server"))
        if "server" in running:
            await running["server"].stop()


# ------------------------------------------------------------------ what `atoll poc --secure` compares
#
# What `atoll poc --secure` compares: the masked run between real processes, one of which was killed, and the plain run of the same rounds in a simulation.


SECURE_TERMS = {"on_lost": "drop", "patience": 20}
"""Terms of the job: it goes on without a site that is lost."""


def survivors_of(rows: Sequence[dict[str, Any]], names: Sequence[str], victim: str) -> list[list[int]]:
    """The positions of the clients in each round's sum: all of them, and all but the victim once it is lost.

    Raises:
        JobError: a round has lost others than the victim.
    """
    everyone = list(range(len(names)))
    left = [i for i in everyone if names[i] != victim]
    found: list[list[int]] = []
    for row in rows:
        replied = int(row["replied"])
        if replied not in (len(everyone), len(left)):
            raise JobError(
                f"{replied} of {len(everyone)} sites were in round {row['round']}, though one was killed",
                where="atoll poc --secure",
                remedy="look at daemons.log: the machine may be too busy",
            )
        found.append(everyone if replied == len(everyone) else left)
    return found


def compared(job: Any, islands: Islands, rounds: list[list[int]], params: Any, seed: int) -> dict[str, float]:
    """The largest difference between a parameter of the masked run and of the plain run, and how large rounding may make it.

    In every round fixed point moves a parameter of the sum by at most half a unit a client, and the model keeps it in single precision. ``bound`` is that
    much in every round, each carried to the end as far as a simulation carries a change of this size from the beginning.

    Args:
        job: the masked training.
        islands: the rows of the sites, under their names.
        rounds: the clients of each round's sum.
        params: the parameters of the masked run.
        seed: of the run.
    """
    plain = job.replace(reducer=Plain(), selection=Schedule(rounds), rounds=len(rounds), callbacks=())

    def train_model(change: float) -> Any:
        made = simulate(
            plain.replace(model=_Moved(plain.model, change)) if change else plain,
            islands,
            engine="inline",
            seed=seed,
            progress=False,
        )
        return made.params

    want = train_model(0.0)
    step = _rounding(want)
    moved = max(_apart(want, train_model(step)), step)
    return {"difference": _apart(want, params), "bound": len(rounds) * moved}


def _rounding(params: Any) -> float:
    """Half a unit in the last place of the largest parameter in single precision; the words of a secure sum are finer."""
    return float(max(np.spacing(np.abs(np.asarray(leaf)).max().astype(np.float32)) for leaf in T.leaves(params)))


def _apart(a: Any, b: Any) -> float:
    pairs = zip(T.leaves(a), T.leaves({name: b[name] for name in a}), strict=True)
    return float(max(np.abs(np.asarray(x, dtype=np.float64) - np.asarray(y)).max() for x, y in pairs))


class _Moved:
    """A model whose first parameters are moved up and down by a small change.

    Args:
        model: the model.
        change: by how much, alternating in sign.
    """

    def __init__(self, model: Any, change: float) -> None:
        self.model, self.change = model, change

    def learner(self, settings: Any, data: Any) -> Any:
        """The model's own learner, with another beginning."""
        from atoll.learn.learner import adapt

        made: Any = adapt(self.model, settings, data)
        begin = made.init

        def move_params(rng: Any) -> Any:
            def move(leaf: Any) -> Any:
                flat = np.array(leaf, copy=True)
                signs = np.where(np.arange(flat.size) % 2, -1.0, 1.0).reshape(flat.shape)
                return (flat + self.change * signs).astype(flat.dtype)

            return T.map(move, begin(rng))

        made.init = move_params
        return made
