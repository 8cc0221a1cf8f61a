"""A headless Chromium for tests, driven over a pipe in its own DevTools protocol: no driver and no port is needed."""

import base64
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
)
CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PAGE_SECONDS = 120.0  # seconds: a busy machine is not a broken page


class Chromium:
    """One browser with one page."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip("Chromium is not installed: apt-get install -y chromium")
        # It reads commands from descriptor 3 and answers on 4. Pipes are moved up, so as not to be in the way.
        there, here = os.pipe()
        self.answers, back = os.pipe()
        self.commands = here
        high = [os.dup2(fd, 60 + n, inheritable=True) for n, fd in enumerate((there, back))]
        moves = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        words = [found, *SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        self.pid = os.posix_spawn(found, words, {**os.environ, "HOME": str(profile)}, file_actions=moves)
        for descriptor in (there, back, *high):
            os.close(descriptor)
        self.buffer, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.resize(width, height)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError, AssertionError):
            self.session = None
            self.call("Browser.close")
        for descriptor in (self.commands, self.answers):
            os.close(descriptor)
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.1)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def call(self, method: str, **params: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], PAGE_SECONDS)
            assert ready, "Chromium does not answer"
            part = os.read(self.answers, 1 << 20)
            assert part, "Chromium has ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def go(self, url: str) -> None:
        """Opens an address, and waits until the page before has made way."""
        self.run("window.before = true")
        self.call("Page.navigate", url=url)
        self.wait("!window.before && document.readyState === 'complete'")

    def run(self, script: str) -> object:
        """The value of a piece of JavaScript."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, script: str) -> object:
        """Waits until a piece of JavaScript is true, and returns what it is."""
        started = time.monotonic()
        while not (value := self.run(script)):
            assert time.monotonic() - started < PAGE_SECONDS, f"waited in vain for {script}"
            time.sleep(0.03)
        return value

    def click(self, selector: str) -> None:
        """Clicks in the middle of an element, as a mouse does, once it has stopped moving."""
        find = f"document.querySelector({json.dumps(selector)})"
        middle = "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        box, before = self.run(f"{middle}({find}.getBoundingClientRect())"), None
        while box != before:
            time.sleep(0.05)
            self.run(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
            box, before = self.run(f"{middle}({find}.getBoundingClientRect())"), box
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, text: str = "", **more: object) -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": CODES.get(key, 0), **more}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def drop(self, file: Path, x: int = 300, y: int = 300) -> None:
        """Drags a file from outside onto the page."""
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def resize(self, width: int, height: int, scale: float = 1, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Sets the system's colours: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
