"""A headless Chromium that a test drives through its debugging protocol: open a page, type, wait for what appears."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Tab", "tab"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE = 60.0
_APPEARS = """new Promise(done => {{
  const look = () => {{ const found = document.querySelector({selector}); if (found && found.innerText.includes({text})) done(found.innerText); }};
  new MutationObserver(look).observe(document, {{ childList: true, subtree: true, characterData: true }});
  look();
}})"""


class Tab:
    """One page of the browser."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events in between are dropped."""
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                result: dict[str, Any] = answer["result"]
                return result

    async def evaluate(self, script: str) -> Any:
        """Run JavaScript and return its value; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, address: str) -> None:
        """Go to a page and wait until it is loaded."""
        await self.call("Page.navigate", url=address)
        await self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )

    async def type(self, selector: str, text: str) -> None:
        """Click into a field and type."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    async def appears(self, selector: str, text: str = "") -> str:
        """Wait until an element is there whose text has ``text``; return its whole text."""
        script = _APPEARS.format(selector=json.dumps(selector), text=json.dumps(text))
        while True:
            try:
                found: str = await self.evaluate(script)
            except RuntimeError as error:  # the page changed while it was looked at: look at the next one
                if "navigated" not in str(error) and "context" not in str(error):
                    raise
            else:
                return found


@asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[Tab]:
    """Start a browser with an empty profile, and give its first tab."""
    from tornado.httpclient import AsyncHTTPClient
    from tornado.websocket import websocket_connect

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        async with asyncio.timeout(_PATIENCE):
            port = await asyncio.to_thread(_port, process)
            listed = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
            page = next(each for each in json.loads(listed.body) if each["type"] == "page")
            socket = await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=2**26)
            try:
                yield Tab(socket)
            finally:
                socket.close()
                while await socket.read_message() is not None:
                    pass
    finally:
        process.kill()
        process.communicate()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if "DevTools listening on ws://" in line:
            return int(line.rpartition(":")[2].partition("/")[0])
    raise AssertionError("the browser ended before it listened")
