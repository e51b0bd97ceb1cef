"""A real browser for the page: headless Chromium, driven over its debugging pipe; nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
]


class Browser:
    """One tab. `open` a file, `run` JavaScript in it, look at `errors` (console errors, exceptions, failed requests)."""

    def __init__(self, program: str) -> None:
        self.home = tempfile.mkdtemp(prefix="coterie-chromium-")
        theirs, self.to = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in os.pipe())
        self.back, ours = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in os.pipe())

        def wire() -> None:  # Chromium listens at 3 and answers at 4
            os.dup2(theirs, 3)
            os.dup2(ours, 4)

        self.process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={self.home}", "about:blank"],
            preexec_fn=wire, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self.buffer, self.number, self.session, self.errors, self.requests = b"", 0, "", [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """One command and its answer; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self._event(found)

    def _next(self, wait: float = 60.0) -> Any:
        end = time.monotonic() + wait
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(end - time.monotonic(), 0))
            part = os.read(self.back, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("Chromium does not answer.")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def _event(self, event: dict[str, Any]) -> None:
        method, params = event.get("method", ""), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {params['message']}")

    def open(self, path: Path, width: int = 1400, height: int = 900, *, dark: bool = False, wait: bool = True) -> None:
        self.errors, self.requests = [], []
        self.resize(width, height)
        self.scheme(dark)
        self.send("Page.navigate", url=path.resolve().as_uri())
        if wait:
            self.until("document.documentElement?.dataset.ready === 'yes'")

    def resize(self, width: int, height: int) -> None:
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, dark: bool) -> None:
        value = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def run(self, script: str) -> Any:
        """The value of an expression (a promise is awaited)."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def until(self, condition: str, wait: float = 30.0) -> None:
        end = time.monotonic() + wait
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}; errors: {self.errors}")
            time.sleep(0.05)

    def type(self, field: str, text: str) -> None:
        """Type into a field of the page, as a person would."""
        self.run(f"(() => {{ const f = document.getElementById({field!r}); f.focus(); f.select(); }})()")
        self.send("Input.insertText", text=text)
        if not text:
            self.run(f"(() => {{ const f = document.getElementById({field!r}); f.value = '';"
                     " f.dispatchEvent(new Event('input')); })()")  # fmt: skip

    def shot(self, path: Path, *, whole: bool = True) -> None:
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}} if whole else {}
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.session = ""
        self.send("Browser.close")
        os.close(self.to)
        os.close(self.back)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install it (Debian: apt install chromium) to test the page in a browser")
    tab = Browser(CHROMIUM)
    yield tab
    tab.close()
