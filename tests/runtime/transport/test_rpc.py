"""What is particular to gRPC: a process that forks. Each test has a process of its own, as it might wait for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="engines fork their workers on Linux only"),
    pytest.mark.network,
]

LEFT_BEHIND = """
    import asyncio, gc, os
    from atoll.runtime.transport.rpc import aio, stay

    channels = []

    async def main():
        stay()
        channels.append(aio.insecure_channel("127.0.0.1:1"))
        await channels[0].close()

    asyncio.run(main())
    child = os.fork()
    if child == 0:
        channels.clear()  # the last of gRPC's objects
        gc.collect()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

GREETED = """
    import asyncio, os
    from tests.support.certificates import Authority
    from atoll.runtime.transport import TRANSPORTS

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    async def accept(pipe):
        await pipe.gone.wait()

    async def main():
        authority = Authority()
        site, transport = authority.issue("site", "a"), TRANSPORTS["grpc"]()
        listener = await transport.listen("127.0.0.1:0", authority.issue("server", "server"), accept)
        for _ in range(4):
            dialling = asyncio.ensure_future(transport.dial(listener.address, site))
            while not dialling.done():
                fork()  # gRPC's threads are in the middle of the handshake, which asks Python for the certificate
                await asyncio.sleep(0)
            await dialling.result().close()
        await listener.close()

    asyncio.run(main())
"""


def exit_code_of(script: str) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    try:
        return process.wait(120)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_forked_process_may_drop_the_last_of_grpc_s_objects() -> None:
    assert exit_code_of(LEFT_BEHIND) == 0


def test_a_process_forks_while_it_is_greeted() -> None:
    assert exit_code_of(GREETED) == 0
