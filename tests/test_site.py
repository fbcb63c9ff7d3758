"""The documentation site in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import b2nd_dask

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[1] / "docs"
HOW_TO = "larger-than-memory"

#: The contents and references of a page, by one call of the browser.
LOOK = """
const all = (what) => [...document.querySelectorAll(what)];
return {
  links: all('a[href]').map(a => a.href),
  anchors: all('[id]').map(e => e.id),
  broken: all('img').filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.src),
  mute: all('img').filter(i => !i.alt).map(i => i.src),
  wide: Math.max(...all('html, body, .bd-main, .bd-article-container')
    .map(e => e.scrollWidth - e.clientWidth)),
  loaded: performance.getEntriesByType('resource').map(r => r.name),
};
"""
#: Contrast of texts with their background, in our own elements and in plain text.
CONTRAST = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0.99) return c;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll('.lead, .sd-card-title, .bd-article p, .bd-article a')]
  .filter(e => e.innerText.trim() && e.offsetParent).map(e => {
    const pair = [luminance(parse(getComputedStyle(e).color)), luminance(behind(e))].sort();
    const low = Math.min(...pair), high = Math.max(...pair);
    return [(high + 0.05) / (low + 0.05), e.innerText];
  }).filter(pair => pair[0] < 4.5);
"""


def _public() -> set[str]:
    """Names of the package; names of a module in it follow that of the module."""
    names = set(b2nd_dask.__all__) - {"__version__"}
    for name in sorted(names):
        value = getattr(b2nd_dask, name)
        if isinstance(value, ModuleType):
            names = (names - {name}) | {f"{name}.{inner}" for inner in value.__all__}
    return names


def test_the_reference_has_every_public_name() -> None:
    page = (DOCS / "reference/index.md").read_text()
    listed = set(re.findall(r"^   ([\w.]+)$", page, re.MULTILINE))
    # only reached through xarray
    assert listed - {"B2ndAccessor"} == set(_public())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Sphinx runs in a new process, on a copy of the pages."""
    pytest.importorskip("sphinx", reason="the site needs the extra 'docs'")
    pytest.importorskip("myst_nb", reason="the site needs the extra 'docs'")
    root = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("generated", "measured", "__pycache__")
    for name in ("docs", "benchmarks", "notebooks", "CHANGELOG.md"):
        copy = partial(shutil.copytree, ignore=ignored) if name[0].islower() else shutil.copy
        copy(DOCS.parent / name, root / name)
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, "docs", "build"]
    environment = {"PYTHONPATH": str(DOCS.parent), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root / "build"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("selenium", reason="the browser is driven by selenium: extra 'docs'")
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    off = ("background-networking", "component-update", "sync", "gpu", "quic", "dev-shm-usage")
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    flags = ["--headless=new", "--no-sandbox", "--no-first-run", profile]
    for flag in [*flags, *(f"--disable-{name}" for name in off)]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


def _requested(browser: Any) -> set[str]:
    """Hosts with requests since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = (m for m in messages if m["method"] == "Network.requestWillBeSent")
    urls = (urlsplit(m["params"]["request"]["url"]) for m in sent)
    return {url.netloc for url in urls if url.scheme in {"http", "https", "ws", "wss"}}


def _look(browser: Any, url: str) -> dict[str, Any]:
    """Open a page and return its contents once loaded, since `get` does not always wait."""
    browser.get(url)
    loaded = "return document.readyState === 'complete' && location.href === arguments[0]"
    deadline = time.monotonic() + 60
    while not browser.execute_script(loaded, url):
        assert time.monotonic() < deadline, f"{url} is not loaded"
        time.sleep(0.05)
    look: dict[str, Any] = browser.execute_script(LOOK)
    assert "main-content" in look["anchors"], (url, look)
    return look


@pytest.mark.slow
def test_pages_of_the_site(site: Path, address: str, browser: Any) -> None:
    """Links, anchors, pictures, errors, requests, and the width of a telephone."""
    width = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", width)
    code = {"_modules", "genindex.html", "_static", "search.html"}
    pages = [p.relative_to(site).as_posix() for p in sorted(site.rglob("*.html"))]
    pages = [page for page in pages if page.split("/")[0] not in code]
    assert len(pages) > 40
    looks: dict[str, dict[str, list[str]]] = {}
    wide, silent = {}, {}
    for page in pages:
        look = looks[address + page] = _look(browser, address + page)
        if look["wide"] > 1:
            wide[page] = look["wide"]
        silent[page] = [look["broken"], look["mute"]]
    assert wide == {}
    assert {page: found for page, found in silent.items() if found != [[], []]} == {}
    assert _requested(browser) == {urlsplit(address).netloc}
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    missing = set()
    for page, look in looks.items():
        for link in look["links"]:
            url, anchor = urldefrag(link)
            if not url.startswith(address):
                continue
            target = url.removesuffix("#").split("?")[0]
            file = site / unquote(target.removeprefix(address) or "index.html")
            known = looks.get(target, {}).get("anchors")
            if not file.exists() or (anchor and known and unquote(anchor) not in known):
                missing.add((page, link))
    assert missing == set()
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "page"), [("persist_compressed", "persist_compressed"), ("intermediate", HOW_TO)]
)
def test_the_search_of_the_site(address: str, browser: Any, words: str, page: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}search.html?q={words}")
    find = "return [...document.querySelectorAll('#search-results a')].map(a => a.href)"
    done = partial(_any_with, find, page)
    WebDriverWait(browser, 60).until(done)


def _any_with(script: str, text: str, browser: Any) -> bool:
    return any(text in found for found in browser.execute_script(script))


@pytest.mark.slow
def test_menus_and_themes_of_the_site(address: str, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.set_window_size(500, 800)
    browser.get(f"{address}recipes.html")
    menu = browser.find_element(By.CSS_SELECTOR, "button.primary-toggle")
    browser.execute_script("arguments[0].click()", menu)
    entry = (By.CSS_SELECTOR, "dialog[open] a[href*='larger-than-memory']")
    WebDriverWait(browser, 60).until(lambda b: b.find_element(*entry).is_displayed())
    browser.set_window_size(1300, 900)
    for mode in ("light", "dark"):
        for page in ("index.html", "comparison.html"):
            browser.get(address + page)
            browser.execute_script(f"localStorage.setItem('mode', '{mode}')")
            browser.refresh()
            theme = browser.execute_script("return document.documentElement.dataset.theme")
            assert theme == mode
            assert browser.execute_script(CONTRAST) == []
