"""What the server says: its clock and its version. Admins and auditors ask over a line; a site's second line would end its first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from atoll.core.errors import AtollError
from atoll.core.requests.wire import unpack_error
from atoll.runs.versions import versions
from atoll.runtime.line import Line, Settings, dial_line
from atoll.runtime.provision.kit import Kit
from atoll.runtime.transport import transport

from .finding import Finding

__all__ = ["SKEW", "check_talk", "compare_answers"]

SKEW = 60.0
"""Seconds between two clocks; beyond that, certificates and logs begin to mislead."""


def check_talk(kit: Kit, address: str, node: str, patience: float) -> list[Finding]:
    """Open a line and ask.

    Args:
        kit: of an admin or auditor.
        address: ``host:port``.
        node: the server, in words.
        patience: seconds for everything.
    """
    try:
        skew, told = asyncio.run(_ask(kit, address, patience))
    except (AtollError, OSError) as error:
        said = getattr(error, "what", None) or str(error) or f"no answer within {patience:g} s"
        return [Finding.problem("line", f"{node}: {said}", getattr(error, "remedy", None) or "read the server's log")]
    return [_clock(skew, node), _version(told, node)]


def compare_answers(told: Mapping[str, Any], node: str) -> list[Finding]:
    """Return what a server says about itself on a visit without a line.

    Args:
        told: its ``"atoll"`` and ``"clock"``, and this machine's time ``"here"`` at that moment.
        node: the server, in words.
    """
    clock = told.get("clock")
    if not isinstance(clock, float) or not math.isfinite(clock):
        return [Finding.skip_step("clock skew", f"{node} does not say its time")]
    return [_clock(clock - told["here"], node), _version({"atoll": told.get("atoll", "?")}, node)]


async def _ask(kit: Kit, address: str, patience: float) -> tuple[float, dict[str, Any]]:
    settings = Settings(heartbeat=0.05, patience=patience, greeting=patience)
    async with asyncio.timeout(patience):
        line = await dial_line(partial(transport(kit.transport).dial, address, kit.credentials()), settings=settings)
        try:
            told = await _about(line)
            while (skew := line.stats().skew) is None:
                await asyncio.sleep(0.01)
            return skew, told
        finally:
            await line.close("the doctor has seen enough", within=1.0)


async def _about(line: Line) -> dict[str, Any]:
    channel = line.open("request")
    await channel.send({"op": "about"})
    found = await channel.recv()
    channel.close()
    return found if isinstance(found, dict) else {}


def _clock(skew: float, node: str) -> Finding:
    if abs(skew) > SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        said = f"{node}: its clock is {abs(skew):.0f} s {ahead} this machine's"
        return Finding.problem("clock skew", said, "set both clocks by a time server; certificates hold by the clock")
    return Finding.ok("clock skew", f"{node}: {skew:+.1f} s")


def _version(told: dict[str, Any], node: str) -> Finding:
    own = versions()["atoll"]
    if "error" in told:
        error = unpack_error(told["error"])
        return Finding.skip_step("version", f"{node} does not say its version: {getattr(error, 'what', error)}")
    theirs = str(told.get("atoll", "?"))
    if theirs.split(".")[:2] != own.split(".")[:2]:
        remedy = f'install the same version at both ends: pip install "atoll[net]=={theirs}"'
        return Finding.problem("version", f"{node} has Atoll {theirs}, and here is {own}", remedy)
    return Finding.ok("version", f"{node} has Atoll {theirs}, and here is {own}")
