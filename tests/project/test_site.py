"""The built site in a real browser: the search works from a folder and over HTTP, and every public name has a page.

The site is that of `make docs`; without it, or without a browser, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import atoll
from tests.support.browser import CHROMIUM, tab
from tests.support.sources import ROOT

SITE = ROOT / "site"
built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: run `make docs`")
browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        del format, args


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"file": SITE.as_uri(), "http": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.network
@built
@browser
@pytest.mark.parametrize("way", ["file", "http"])
@pytest.mark.parametrize("page", ["index.html", "howto/sweeps.html"])
@pytest.mark.quick("index.html-file")
def test_who_types_into_the_search_finds_the_page(
    addresses: dict[str, str], way: str, page: str, tmp_path: Path
) -> None:
    async def search() -> tuple[str, str]:
        async with tab(tmp_path) as shown:
            await shown.open(f"{addresses[way]}/{page}")
            await shown.evaluate("document.querySelector('#__search').click()")
            await shown.type("input.md-search__input", "scaffold")
            found = await shown.appears(".md-search-result__list", "Scaffold")
            link = ".md-search-result__list a[href*='algorithms.scaffold.Scaffold.html']"
            await shown.evaluate(f'document.querySelector("{link}").click()')
            return found, await shown.appears("h1", "Scaffold")

    found, title = asyncio.run(search())
    assert "Karimireddy" in found or "control variate" in found.lower() or "SCAFFOLD" in found
    assert title.startswith("Scaffold")


@pytest.mark.network
@built
@browser
def test_a_tutorial_shows_what_its_code_printed(addresses: dict[str, str], tmp_path: Path) -> None:
    async def read() -> str:
        async with tab(tmp_path) as shown:
            await shown.open(f"{addresses['file']}/tutorials/hospitals.html")
            assert await shown.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
            return await shown.appears("article", "together")

    assert "Download this page as a notebook" in asyncio.run(read())


@built
def test_every_public_name_has_a_page_of_its_own() -> None:
    pages = {path.stem.rpartition(".")[2] for path in (SITE / "reference").glob("*.html")}
    missing = [name for name in atoll.__all__ if name not in pages and not hasattr(getattr(atoll, name), "__path__")]
    assert [name for name in missing if name[:1].isupper()] == []
    assert len(pages) > 400


@built
def test_a_symbols_page_has_signature_and_arguments() -> None:
    text = (SITE / "reference" / "atoll.learn.algorithms.fedavg.FedAvg.html").read_text(encoding="utf-8")
    assert "server_lr" in text
    assert "<h1" in text
    assert "McMahan" in text
