"""A job runs as its front's user, and reaches neither the passphrase nor the key there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.runtime.admin import Admin
from atoll.runtime.provision import Kit, find_passphrase
from atoll.runtime.provision.keys import forget_variable
from tests.support.walls import Walled, open_folder, played, told, write_job

pytestmark = pytest.mark.anew  # a fork shows the variables of the process that it was forked from
PASSPHRASE = "correct horse battery staple"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's own")

# What is looked for arrives inverted: the thief's own traffic passes through the front's memory.
THIEF = """
import json
import os
from pathlib import Path

import atoll


def fronts():
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\\0")
        except OSError:
            continue
        if b"atoll.cli" in words:
            yield path


def found(needles):
    seen, loot = 0, []
    for path in fronts():
        seen += 1
        for where in ("environ", "memory"):
            try:
                text = (path / "environ").read_bytes() if where == "environ" else memory(path)
            except OSError:
                continue
            loot += [f"{where}: {name}" for name, needle in needles.items() if bytes(255 - b for b in needle) in text]
    own = [name for name in os.environ if "PASSPHRASE" in name]
    return {"fronts": seen, "loot": sorted(set(loot)) + own}


def memory(path):
    parts = []
    with (path / "mem").open("rb", 0) as mem:
        for line in (path / "maps").read_text().splitlines():
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                first, last = (int(part, 16) for part in span.split("-"))
                mem.seek(first)
                try:
                    parts.append(mem.read(last - first))
                except OSError:
                    pass
    return b"".join(parts)


def tell(needles):
    print("thief", json.dumps(found({name: bytes.fromhex(text) for name, text in needles.items()})), flush=True)


@atoll.task
def look(island, message):
    tell(message["needles"])
    return {"n": atoll.Sum(1.0)}


async def run(fed, needles):
    await fed.sum(fed.parties, look, {"needles": needles})
    tell(needles)
"""


def raw_key(kit: Kit) -> bytes:
    """The private number of a kit's key, 32 bytes, as OpenSSL's PKCS #8 holds it."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(kit.credentials().key, None)
    return key.private_numbers().private_value.to_bytes(32, "big")  # type: ignore[union-attr]


def inverted(text: bytes) -> str:
    return bytes(255 - byte for byte in text).hex()


@LINUX
@pytest.mark.parametrize("transport", ["tcp", pytest.param("grpc", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_job_finds_neither_passphrase_nor_key_at_its_front(tmp_path: Path, transport: str) -> None:
    with open_folder() as folder:
        walled = Walled(folder, transport=transport, passphrase=PASSPHRASE)
        keys = {name: walled.kit(name).credentials().key.splitlines()[1] for name in ("server", "north")}
        needles = {"passphrase": PASSPHRASE.encode(), **{f"{name}'s key": text for name, text in keys.items()}}
        needles |= {f"{name}'s number": raw_key(walled.kit(name)) for name in keys}
        job = write_job(tmp_path / "steal", THIEF, arguments={"needles": {k: inverted(v) for k, v in needles.items()}})

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, job)
            for node in ("server", "north"):
                seen = told(said[node], "thief")
                assert seen["fronts"] >= 2, node  # it saw both; tests beside this one may run more
                assert seen["loot"] == [], node  # and it got nothing

        played(walled, body)


@pytest.mark.network
@LINUX
def test_a_variable_is_gone_from_the_process_and_from_its_first_environment() -> None:
    text = (
        "import os; from atoll.runtime.provision.keys import forget_variable; forget_variable('SECRET');"
        "first = open('/proc/self/environ', 'rb').read(); print('SECRET' in os.environ, b'hush' in first, b'KEPT=yes' in first)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "SECRET": "hush", "KEPT": "yes"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False", "True"]


@pytest.mark.network
@LINUX
def test_a_closed_process_leaves_no_core_and_nobody_reads_its_memory() -> None:
    text = (
        "import ctypes, resource; from atoll.runtime.provision.keys import close_memory; print(close_memory());"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))"  # PR_GET_DUMPABLE
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0", "0", "0"]


def test_a_passphrase_is_taken_from_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_PASSPHRASE", PASSPHRASE)
    assert find_passphrase(forget=True) == PASSPHRASE.encode()
    assert find_passphrase() is None
    forget_variable("ATOLL_PASSPHRASE")  # gone already: no fault


@pytest.mark.network
def test_an_opened_kit_holds_one_key_and_no_passphrase(tmp_path: Path) -> None:
    with open_folder() as folder:
        kit = Walled(folder, passphrase=PASSPHRASE).kit("north").unlocked()
        assert kit.passphrase is None
        assert kit.credentials() is kit.credentials()
        assert "PRIVATE" not in repr(kit)
