"""A small WebDriver client over urllib: as much of a browser as the page tests need, and no package more."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class Browser:
    """One Chromium session behind a chromedriver of its own."""

    def __init__(self, driver: str, chromium: str, profile: Path) -> None:
        self.port = _free_port()
        self.process = subprocess.Popen(
            [driver, f"--port={self.port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{self.port}"
        try:
            self._wait()
            options = {"binary": chromium, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.process.kill()
            raise
        self.base += f"/session/{found['sessionId']}"

    def close(self) -> None:
        """Ends the session and its driver."""
        with contextlib.suppress(OSError, RuntimeError):
            self._call("DELETE", "", None)
        self.process.terminate()
        self.process.wait(timeout=20)

    def open(self, url: str) -> None:
        """Loads a page and waits for its load event."""
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a function body in the page and returns what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def keys(self, *names: str) -> None:
        """Presses keys one after the other on whatever has the focus."""
        codes = {"Enter": "\ue007", "Down": "\ue015", "Escape": "\ue00c", "Tab": "\ue004", "Right": "\ue014"}
        strokes = [{"type": kind, "value": codes.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def click(self, selector: str) -> None:
        """Scrolls an element into view and clicks it as a user would."""
        self.run(
            "document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant', block: 'center'})", selector
        )
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{next(iter(element.values()))}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Types into an element."""
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{next(iter(element.values()))}/value", {"text": text})

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Sets the page's own size in CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """One command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Writes what is seen, or the whole page, as a PNG."""
        found = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole, "format": "png"})
        path.write_bytes(base64.b64decode(found["data"]))

    def console(self) -> list[dict[str, Any]]:
        """Messages since the last call."""
        found: list[dict[str, Any]] = self._call("POST", "/se/log", {"type": "browser"})
        return found

    def requests(self) -> list[str]:
        """The addresses asked for since the last call."""
        entries = [
            json.loads(entry["message"])["message"] for entry in self._call("POST", "/se/log", {"type": "performance"})
        ]
        return [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]

    def _wait(self) -> None:
        for _ in range(200):
            with contextlib.suppress(OSError):
                if self._call("GET", "/status", None)["ready"]:
                    return
            time.sleep(0.05)
        raise RuntimeError("chromedriver does not answer")

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.loads(error.read())["value"]["message"]) from error


def found_browser() -> tuple[str, str] | None:
    """(chromedriver, chromium) where both are installed."""
    driver = shutil.which("chromedriver")
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    return (driver, chromium) if driver and chromium else None


@contextlib.contextmanager
def browser_session() -> Iterator[Browser]:
    """A browser with a fresh profile.

    Raises:
        RuntimeError, OSError: it does not start.
    """
    found = found_browser()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="page-test-", ignore_cleanup_errors=True) as profile:
        browser = Browser(*found, Path(profile))
        try:
            yield browser
        finally:
            browser.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; skips with the reason where there is none."""
    if found_browser() is None:
        pytest.skip("no Chromium with chromedriver here: apt-get install chromium chromium-driver")
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(browser_session())
        except (RuntimeError, OSError) as error:
            pytest.skip(f"Chromium does not start here: {error}")
        yield session
