"""The people's end: submit, look, follow, abort, resume, clone, fetch."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from atoll.core.errors import AtollError, ConfigError, IdentityError, JobError, MessageError
from atoll.core.persistence.trail import Head, TrailCheck
from atoll.core.requests.wire import unpack_error
from atoll.engines.link import LinkClosed

from .bundle import unpack, verify
from .daemon.control import RESULT_NAME, dialler
from .line import Line, LineLost, Settings, dial_line
from .provision import Kit
from .server.requests import MAY, REQUEST

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["Admin", "claim", "receive_file", "require_free"]


# ------------------------------------------------------------------ receives files from a server, in pieces


_MARK = ".job"
"""The file that says which job a folder is for, so that fetching again may replace its files."""


async def receive_file(answers: AsyncIterator[Any], name: str, out: Path) -> Path:
    """Receive one file; it appears in its place only when complete.

    Args:
        answers: its pieces, and then its SHA-256.
        name: its name at the server.
        out: the folder.

    Raises:
        MessageError: the name leads elsewhere, or what arrived is not what was sent.
    """
    if not RESULT_NAME.fullmatch(name):
        raise MessageError(f"{name[:100]!r} is not a file name", where="server", remedy="check that server")
    answer: Any = {}
    seen, part = hashlib.sha256(), out / f".{name}.part"
    with part.open("wb") as file:
        async for answer in answers:
            if "piece" not in answer:
                break
            seen.update(answer["piece"])
            file.write(answer["piece"])
    if answer.get("sha256") != seen.hexdigest():
        raise MessageError(f"{name} did not arrive whole", where=str(out), remedy="fetch it again")
    return part.replace(out / name)


def require_free(out: Path, job: str) -> None:
    """Refuse a folder with files that did not come from this job: they would be overwritten.

    Raises:
        JobError: it holds other files, or is not a folder.
    """
    try:
        free = not out.exists() or not any(out.iterdir()) or (out / _MARK).read_text(encoding="utf-8").strip() == job
    except (OSError, ValueError):  # a file, or an unreadable mark
        free = False
    if not free:
        raise JobError(
            "the folder holds something else, which would be overwritten",
            where=str(out),
            remedy="choose a new or an empty folder: --out FOLDER",
        )


def claim(out: Path, job: str) -> None:
    """Make the folder of a job's files, which `require_free` has checked.

    Raises:
        JobError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARK).write_text(f"{job}\n", encoding="utf-8")
    except OSError as error:
        raise JobError(
            f"the folder cannot be made: {error.strerror or error}",
            where=str(out),
            remedy="choose another: --out FOLDER",
        ) from error


# ------------------------------------------------------------------ the people's end: submit, look, follow, abort, resume, clone, fetch


_LOG = logging.getLogger("atoll.runtime")
_ENDED = ("finished", "failed", "aborted")


class Admin:
    """A connection to the server, with the kit of an admin or auditor, or of a site, whose daemon keeps its own.

    If the server restarts, requests that only read, and ``submit``, are sent again on a new line.

    Args:
        kit: the kit.
        server: ``host:port`` in place of the kit's addresses.
        patience: seconds to try to reach the server.

    Raises:
        ConfigError: the kit is a server's or a helper's.
    """

    def __init__(self, kit: Kit, server: str | None = None, patience: float = 15.0) -> None:
        if kit.role not in MAY:
            raise ConfigError(
                f"this is the kit of {kit.role} {kit.name!r}, which makes no requests",
                where=str(kit.folder),
                remedy="give the kit of an admin or auditor: --kit FOLDER, or ATOLL_KIT",
            )
        self.kit = kit
        self._server = server
        self._settings = Settings(patience=patience)
        self._dial = dialler(kit, server)
        self._line: Line | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._connect_line()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            await self._line.close(within=2.0)

    async def _connect_line(self) -> Line:
        async with self._connecting:
            if self._line is None or self._line.lost.is_set():
                self._line = await self._dial_server()
            return self._line

    async def _dial_server(self) -> Line:
        try:
            return await dial_line(self._dial, settings=self._settings, asks=self.kit.role == "site")
        except IdentityError:
            raise
        except (OSError, TimeoutError) as error:
            place = self._server or ", ".join(way.address for way in self.kit.ways)
            names = " or ".join(dict.fromkeys(repr(way.server) for way in self.kit.ways))
            raise JobError(
                f"server {names} cannot be reached at {place}: {error}",
                where=f"{self.kit.role} {self.kit.name!r}, connection",
                remedy=f"is `atoll server` running there? see what is in the way: atoll doctor {self.kit.folder}",
            ) from error

    async def ask(self, op: str, **fields: Any) -> AsyncIterator[Any]:
        """Yield every answer to a request.

        Raises:
            AtollError: the server's error, or it went away.
            LineLost: the server restarted.
        """
        channel = (await self._connect_line()).open(REQUEST)
        try:
            await channel.send({"op": op, **fields})
            while True:
                try:
                    answer = await channel.recv()
                except LineLost:
                    raise
                except LinkClosed:
                    return
                if answer.get("error") is not None:
                    raise _error(answer["error"])
                yield answer
        finally:
            channel.close()

    async def one(self, op: str, **fields: Any) -> Any:
        """Return the one answer to a request; ask again if the server restarted meanwhile."""
        while True:
            try:
                async for answer in self.ask(op, **fields):
                    return answer
            except LineLost as error:
                _LOG.info("asking again: %s", error)
                continue
            raise MessageError(f"no answer to {op!r}", where="server", remedy="use the same version at both ends")

    # ------------------------------------------------------------------ requests

    async def submit(self, job: Path, settings: Iterable[str] = (), where: str | None = None) -> dict[str, Any]:
        """Sign a job and submit it.

        Args:
            job: a file, or a folder with ``job.yaml``.
            settings: ``a.b=value``.
            where: the place that errors name; by default the file.

        Raises:
            AtollError: it cannot be read, does not name a program, cannot travel, or is refused.
        """
        # Other requests need no training code.
        from .job_spec import load_job, pack_job

        def pack_bundle() -> bytes:
            config = load_job(job, settings, where)
            return pack_job(config, self.kit.credentials())

        bundle = await asyncio.to_thread(pack_bundle)
        # The token makes it one job, even if the answer is lost and the request repeated.
        return dict((await self.one("submit", bundle=bundle, token=secrets.token_hex(16)))["job"])

    async def submit_job(self, job: Job, **terms: Any) -> dict[str, Any]:
        """Sign and submit a live job.

        Args:
            job: the job.
            terms: see `JobConfig.of`.

        Raises:
            AtollError: it cannot travel, or is refused.
        """
        from .job_spec import JobConfig, pack_job

        bundle = await asyncio.to_thread(lambda: pack_job(JobConfig.of(job, **terms), self.kit.credentials()))
        return dict((await self.one("submit", bundle=bundle, token=secrets.token_hex(16)))["job"])

    async def clone(self, job: str, settings: Iterable[str] = ()) -> dict[str, Any]:
        """Submit a job once more, with other settings; this signs it again."""
        answer = await self.one("bundle", job=job)
        bundle = bytes(answer["bundle"])
        # It is signed again, so the first signer's certificate may have expired since.
        verified = verify(bundle, ca=self.kit.bytes_of("ca.pem"), project=self.kit.project, known=lambda manifest: True)
        with tempfile.TemporaryDirectory() as place:
            unpack(bundle, verified, Path(place) / "job")
            # Changed settings may need other helpers. The folder is gone when you read the error, and a job that was
            # accepted once is refused only for its changes.
            where = "--set" if settings else f"job {job}"
            return await self.submit(Path(place) / "job", ["helpers=null", *settings], where)

    async def jobs(self, *, limit: int | None = None, **wanted: Any) -> list[dict[str, Any]]:
        """Return jobs, oldest first.

        Args:
            limit: only so many of the newest; all by default.
            wanted: which ones: ``states``, ``submitter``, ``name`` (a pattern), ``site``, ``since`` (seconds since
                1970), ``before`` (an id); see `atoll.runtime.store.records.JobFilter`.
        """
        found: list[dict[str, Any]] = []
        while limit is None or len(found) < limit:
            asked = {"limit": None if limit is None else limit - len(found), **wanted}
            page = (await self.one("jobs", **asked))["jobs"]
            found = [*(dict(job) for job in page), *found]
            if not page:
                break
            wanted["before"] = page[0]["job"]
        return found

    async def job(self, job: str | int) -> dict[str, Any]:
        """Return one job, by its id or its number."""
        asked = {"number": job} if isinstance(job, int) else {"job": job}
        return dict((await self.one("jobs", **asked))["jobs"][0])

    async def sites(self) -> list[dict[str, Any]]:
        """Return the sites of the project: connected or not, when last seen, and the state of each line: round trip and clock lead in seconds, bytes, resumptions."""
        return [dict(site) for site in (await self.one("sites"))["sites"]]

    async def events(self, job: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the audit trail, oldest first: who did what, when; of all jobs, or of one."""
        after = 0
        while found := (await self.one("events", job=job, after=after))["events"]:
            for event in found:
                after = event["number"]
                yield dict(event)

    async def verified(self, known: Head | None = None) -> Head:
        """Read the whole audit trail, check its chain, and return its end; see `atoll.core.persistence.trail`.

        Args:
            known: an end that was returned earlier, which the trail must pass through.

        Raises:
            JobError: an event is missing, changed or added.
        """
        check = TrailCheck(known=known)
        while True:
            found = await self.one("events", job=None, after=check.head.number)
            check.add(found["events"])
            if not found["events"]:
                check.end(Head.read(str(found["head"])))
                return check.head

    async def watch(
        self, job: str | None = None, *, limit: int | None = None, **wanted: Any
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the newest jobs (or one job) now and after every change, across lines: the server learns what you have seen.

        Args:
            job: its id; by default those that ``wanted`` leaves, see ``jobs``.
            limit: only so many of the newest; at most 1,000.
            wanted: which ones.
        """
        seen = None
        while True:
            answer = await self.one("jobs", job=job, seen=seen, limit=limit, **wanted)
            seen = answer["seen"]
            yield [dict(found) for found in answer["jobs"]]

    async def wait(self, job: str, on_change: Callable[[dict[str, Any]], None] = lambda job: None) -> dict[str, Any]:
        """Wait for a job to end, and return it."""
        async for found in self.watch(job):
            on_change(found[0])
            if found[0]["state"] in _ENDED:
                return found[0]
        raise LineLost("the watch has ended")

    async def finish(self, job: str, on_change: Callable[[dict[str, Any]], None] = lambda job: None) -> dict[str, Any]:
        """Wait for a job to finish, and return it.

        Raises:
            AtollError: what ended the job, as it was raised where it happened; a `JobError` if it was stopped or refused.
        """
        ended = await self.wait(job, on_change)
        if ended["error"] is not None and isinstance(found := unpack_error(ended["error"]), AtollError):
            raise found
        if ended["state"] != "finished":
            raise JobError(f"the job is {ended['state']}: {ended['reason']}", where=job, remedy=f"see atoll logs {job}")
        return ended

    async def logs(self, job: str, follow: bool = False) -> AsyncIterator[tuple[float, str, str]]:
        """Yield (seconds since 1970, node, line), oldest first; with ``follow`` until the job has ended."""
        after = 0
        while True:
            try:
                async for answer in self.ask("logs", job=job, after=after, follow=follow):
                    for number, when, node, line in answer["lines"]:
                        after = number
                        yield when, node, line
                return
            except LineLost as error:
                _LOG.info("reading on: %s", error)

    async def abort(self, job: str) -> dict[str, Any]:
        """End a job; return when everything of it has stopped."""
        return dict((await self.one("abort", job=job))["job"])

    async def delete(self, job: str) -> None:
        """Delete a job that has ended: its record, log, bundle and results at the server, and its private state at the sites.

        The events and the sites' privacy ledgers stay, and so do named results, which are the sites' own.

        Raises:
            AtollError: there is no such job, or it has not ended.
        """
        await self.one("delete", job=job)

    async def resume(self, job: str) -> dict[str, Any]:
        """Resume a job that failed or was aborted from its last checkpoint: the same job, one more attempt.

        Raises:
            AtollError: it has not ended, or its state is gone: then clone it.
        """
        # The token makes it one resumption, even if the answer is lost and the request repeated.
        return dict((await self.one("resume", job=job, token=secrets.token_hex(16)))["job"])

    async def result(
        self,
        job: str,
        out: Path,
        *,
        replace: bool = False,
        withheld: dict[str, str] | None = None,
        files: Sequence[str] = (),
    ) -> list[Path]:
        """Fetch the results of a job into a folder: a new or an empty one, or one that you fetched this job into before.

        Args:
            job: its id.
            out: the folder.
            replace: replace files of the same names, whatever the folder holds.
            withheld: takes the names in the job's folder at the server that are not sent, and what they are.
            files: names of files to fetch; all of them by default.

        Raises:
            AtollError: there are no results yet, they did not arrive complete, or the folder holds something else.
        """
        if not replace:
            require_free(out, job)
        answers, found = self.ask("result", job=job, **({"files": list(files)} if files else {})), []
        async for answer in answers:
            if "file" in answer:
                claim(out, job)
                found.append(await receive_file(answers, str(answer["file"]), out))
            elif withheld is not None and isinstance(answer.get("withheld"), dict):
                withheld |= {str(name)[:100]: str(why)[:200] for name, why in answer["withheld"].items()}
        return found


def _error(packed: Any) -> AtollError:
    try:
        found = unpack_error(packed)
    except (KeyError, TypeError, AttributeError):
        found = None
    if isinstance(found, AtollError):
        return found
    return JobError(str(found or "an error that cannot be read"), where="server", remedy="see the server's log")
