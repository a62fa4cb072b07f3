"""A session of a few roles, held without a world: what each role says is kept as it travels."""

from __future__ import annotations

import asyncio


class Ends:
    """The ends of a session whose messages are kept as they travel."""

    def __init__(self, *names):
        self.names = names
        self.said = []
        self.queues = {(a, b): asyncio.Queue() for a in names for b in names}

    def end(self, me):
        ends = self

        class End:
            names = [name for name in ends.names if name != me]  # noqa: RUF012

            async def send(self, role, message):
                ends.said.append((me, role, message))
                await ends.queues[me, role].put(message)

            async def broadcast(self, message, roles=None):
                for role in roles or self.names:
                    await self.send(role, message)

            async def recv(self, role):
                return await ends.queues[role, me].get()

        return End()


def hold(**roles):
    ends = Ends(*roles)

    async def run():
        return await asyncio.wait_for(asyncio.gather(*(role(ends.end(name)) for name, role in roles.items())), 60)

    return asyncio.run(run()), ends.said
