"""Drives headless Chromium through chromedriver's WebDriver interface, with the standard library alone."""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One headless browser with a profile of its own."""

    def __init__(self, driver="chromedriver", binary="chromium"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.profile = tempfile.mkdtemp(prefix="bilayer-web-")
        self.process = subprocess.Popen(
            [shutil.which(driver) or driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.root = f"http://127.0.0.1:{port}"
        self.wait_ready()
        options = {
            "binary": shutil.which(binary) or binary,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self.profile}"],
        }
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        self.root += f"/session/{self.session}"
        self.call("POST", "/timeouts", {"script": 60_000})

    def wait_ready(self):
        for _ in range(100):
            try:
                if self.call("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("chromedriver does not start")

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)
            shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise RuntimeError(f"{path}: {value.get('error')}: {value.get('message', '').splitlines()[0]}") from None

    def go(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """The value of a script, which may be a promise."""
        return self.call("POST", "/execute/sync", {"script": f"return (async function () {{ {script}\n }}).apply(null, arguments)", "args": list(arguments)})

    def cdp(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys):
        """Keys one after the other, each with the modifiers before it held: press("Shift", "Enter")."""
        codes = {"Shift": "\ue008", "Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004"}
        down = [{"type": "keyDown", "value": codes.get(key, key)} for key in keys]
        up = [{"type": "keyUp", "value": codes.get(key, key)} for key in reversed(keys)]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": down + up}]})

    def wait(self, script, what, seconds=30):
        """Waits until a script's value is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"not in {seconds} s: {what}")

    def log(self):
        """What the console said since the last call."""
        return [entry for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] in ("SEVERE", "WARNING")]

    def size(self, width, height, is_phone=False):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        self.cdp("Emulation.setTouchEmulationEnabled", enabled=is_phone)

    def scheme(self, name, **features):
        media = {"prefers-color-scheme": name, **features}
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": key, "value": value} for key, value in media.items()])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.cdp("Page.captureScreenshot", format="png")["data"]))
