"""Uses the web page of a server in headless Chromium and checks what it does; takes screenshots.

    python3 tests/web/check.py [--url http://127.0.0.1:8080 | --bilayer PROGRAM] [--out target/web]

Without --url it starts the mock server beside it, with --bilayer the server of that program on the demo model. Against
a real server the cases that need a particular answer are left out. Needs the Debian packages chromium and
chromium-driver. The exit status is 0 if every check holds.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import traceback
import urllib.error
import urllib.request
from urllib.parse import urljoin

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mock
from driver import Browser

HERE = os.path.dirname(os.path.abspath(__file__))
BYTES_MAX = 150_000
SIZES = {"phone": (390, 844, True), "laptop": (1200, 800, False), "desktop": (1600, 1000, False)}
#: What a source of the page must not contain: ways to run text as markup or code.
FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|new Function|setAttribute\(\"(style|on)"
DIRECTIVES = ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]

CHECKS = []


def check(mock_only=False):
    """Registers a check; they run in the order in which they are written."""

    def register(function):
        CHECKS.append((function, mock_only))
        return function

    return register


class Page:
    """The page in a browser, with what the checks do again and again."""

    def __init__(self, browser, url, out):
        self.browser, self.url, self.out = browser, url, out
        self.with_js = lambda name: open(os.path.join(HERE, name), encoding="utf-8").read()

    def open(self):
        self.browser.go(self.url)
        self.browser.wait("return document.querySelector('#model-name').textContent !== '' || !document.querySelector('#model-pick').hidden", "the model's name")

    def fresh(self):
        self.browser.click("#new")

    def send(self, text):
        articles = self.count("article")
        self.browser.type("#message", text)
        self.browser.press("Enter")
        # A short answer may have ended before the first look.
        self.browser.wait(f"return document.querySelectorAll('article').length > {articles + 1} || document.querySelector('.error')", "an answer begins")

    def finish(self, seconds=120):
        self.browser.wait("return document.querySelector('#stop').hidden", "the answer ends", seconds)

    def ask(self, text):
        self.send(text)
        self.finish()

    def count(self, selector):
        return self.browser.run("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        return self.browser.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def script(self, name, *arguments):
        return self.browser.run(self.with_js(name), *arguments)

    def quiet(self, *expected):
        """The console is empty but for failed requests that a check asked for."""
        left = [entry["message"] for entry in self.browser.log() if not any(re.search(one, entry["message"]) for one in expected)]
        assert not left, "the console says:\n    " + "\n    ".join(left)

    def fits(self):
        width, inner = self.browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert width <= inner, f"the page is {width} px wide in a window of {inner} px"
        for part in ("#scroll", "nav", "#live", "#card", "#settings"):
            wide = self.browser.run("const part = document.querySelector(arguments[0]); return part.scrollWidth - part.clientWidth", part)
            assert wide <= 0, f"{part} is {wide} px too wide"

    def limit(self, tokens):
        """Limits the answers, so that small contexts hold several; None takes the limit away."""
        self.browser.run("localStorage.setItem('samplers', JSON.stringify(arguments[0] ? { max_tokens: arguments[0] } : {}))", tokens)
        self.open()

    def shoot(self, name):
        self.browser.screenshot(os.path.join(self.out, f"{name}.png"))


@check()
def headers_and_size(page):
    """The policy is there, no source makes markup from text, and all files together are small."""
    names, total = {""}, 0
    todo = [""]
    while todo:
        name = todo.pop()
        with urllib.request.urlopen(urljoin(page.url, name)) as response:
            body, policy = response.read(), response.headers.get("content-security-policy") or ""
        total += len(body)
        text = body.decode()
        if name == "":
            parts = [part.strip() for part in policy.split(";")]
            missing = [one for one in DIRECTIVES if one not in parts]
            assert not missing, f"the policy lacks {missing}; it is {policy!r}"
            found = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^":]+)"', text)
        else:
            found = [urljoin(name, one) for one in re.findall(r'^import .* from "(.+)";$', text, re.M)]
            bad = re.search(FORBIDDEN, text)
            assert not bad, f"{name} contains {bad[0]}"
        todo += [one for one in found if one not in names]
        names.update(found)
    assert len(names) > 3, "no scripts found"
    assert total <= BYTES_MAX, f"{total} bytes, the limit is {BYTES_MAX}"
    print(f"    {len(names)} files, {total} bytes")


@check()
def loads(page):
    page.open()
    page.quiet()
    assert page.text("h1") == "Bilayer"
    assert page.browser.run("return document.activeElement.tagName") in ("BODY", "TEXTAREA")


@check()
def markdown(page):
    """Rendering: what the dialect means, growing text, hostile text, and long hostile text in little time."""
    failures = page.script("markdown.check.js")
    assert not failures, "\n    ".join(failures)
    page.quiet()


@check()
def answers(page):
    page.send("How is a model split between the CPU and the GPU?")
    page.finish()
    assert page.count(".error") == 0, page.text(".error")
    assert len(page.text(".assistant .prose")) > 0, "the answer is empty"
    assert "tok" in page.text(".stats"), "no statistics below the answer"
    assert page.count("#announce p") > 0, "nothing was announced"
    assert page.text("nav li .row span").startswith("How is a model split")
    page.quiet()


@check()
def stops(page):
    page.fresh()
    page.send("slow: write a very long story about a lighthouse, at least two thousand words")
    page.browser.wait("return document.querySelector('.assistant .prose').innerText.length > 20", "some text")
    page.browser.press("Escape")
    page.finish(5)
    assert "Stopped" in page.text(".assistant .note")
    length = len(page.text(".assistant .prose"))
    page.browser.run("return new Promise((resolve) => setTimeout(resolve, 600))")
    assert len(page.text(".assistant .prose")) == length, "text arrives after the stop"
    page.quiet()


@check()
def regenerates(page):
    page.fresh()
    page.ask("Say hello.")
    page.browser.click('[aria-label="Answer again"]')
    page.browser.wait("return document.querySelector('#stop').hidden && document.querySelector('.which')", "the second answer", 120)
    assert page.text(".which") == "2 of 2"
    assert page.count(".user") == 1
    page.browser.click('[aria-label="Earlier answer"]')
    assert page.text(".which") == "1 of 2"
    page.quiet()


@check()
def edits(page):
    page.limit(24)
    page.fresh()
    page.ask("First question.")
    page.ask("Second question.")
    assert page.count("article") == 4
    page.browser.run("document.querySelector('.user [aria-label=\"Edit the message\"]').click()")
    page.browser.run("document.querySelector('.editing textarea').value = ''")
    page.browser.type(".editing textarea", "An edited question.")
    page.browser.press("Enter")
    page.browser.wait("return document.querySelector('#stop').hidden && document.querySelectorAll('article').length === 2", "the answer to the edited message", 120)
    assert page.text(".user .text") == "An edited question."
    page.limit(None)
    page.quiet()


@check()
def new_line_and_plain_user_text(page):
    page.fresh()
    page.browser.type("#message", "<b>one</b>")
    page.browser.press("Shift", "Enter")
    page.browser.type("#message", "**two**")
    assert page.browser.run("return document.querySelector('#message').value") == "<b>one</b>\n**two**"
    page.browser.press("Enter")
    page.finish()
    assert page.text(".user .text") == "<b>one</b>\n**two**"
    page.quiet()


@check()
def keeps_renames_and_deletes(page):
    before = page.count("nav li .row")
    page.browser.run("document.querySelector('[aria-label^=\"Rename\"]').click()")
    page.browser.run("document.querySelector('nav input').value = ''")
    page.browser.type("nav input", "A better name")
    page.browser.press("Enter")
    page.browser.wait("return document.querySelector('nav li .row span')?.innerText === 'A better name'", "the new name")
    page.open()
    page.browser.wait("return document.querySelectorAll('nav li .row').length > 0", "the list after a reload")
    assert page.count("nav li .row") == before
    page.browser.click("nav li .row")
    assert page.text(".user .text").startswith("<b>one</b>")
    page.browser.run("document.querySelector('nav li.open [aria-label^=\"Delete\"]').click()")
    page.browser.wait(f"return document.querySelectorAll('nav li .row').length === {before - 1}", "the deletion")
    page.browser.click("#toast button")
    page.browser.wait(f"return document.querySelectorAll('nav li .row').length === {before}", "the undoing")
    page.quiet()


@check()
def themes_and_tabs(page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    page.browser.scheme("light")
    light = page.browser.run(colour)
    page.browser.scheme("dark")
    dark = page.browser.run(colour)
    assert light != dark, "the browser's preference changes nothing"
    page.browser.click("#theme")
    assert page.browser.run(colour) == light, "the light theme does not hold in a dark browser"
    page.open()
    assert page.browser.run(colour) == light, "the theme is not remembered"
    page.browser.click("#theme")
    page.browser.click("#theme")
    assert page.browser.run("return localStorage.getItem('theme')") is None
    for tab in ("card", "settings", "live"):
        page.browser.click(f"#tab-{tab}")
        assert page.browser.run("return [...document.querySelectorAll('[role=tabpanel]')].filter((p) => !p.hidden).map((p) => p.id)") == [tab]
    page.quiet()


@check()
def settings_are_sent(page):
    page.browser.click("#tab-settings")
    page.browser.type("#set-temperature", "0.3")
    page.browser.type("#set-seed", "7")
    page.browser.type("#set-top_p", "4")
    assert page.browser.run("return document.querySelector('#set-top_p').getAttribute('aria-invalid')") == "true"
    sent = page.browser.run("return JSON.parse(localStorage.getItem('samplers'))")
    assert sent == {"temperature": 0.3, "seed": 7}, sent
    page.browser.click("#settings .actions button")
    assert page.browser.run("return localStorage.getItem('samplers')") == "{}"
    page.browser.click("#tab-live")
    page.quiet()


@check(mock_only=True)
def request_has_what_was_set(page):
    page.fresh()
    page.browser.click("#tab-settings")
    page.browser.type("#system", "Be brief.")
    page.browser.type("#set-temperature", "0.3")
    page.ask("echo")
    sent = page.text(".assistant code")
    for part in ('"temperature": 0.3', '"stream": true', '"include_usage": true', '"timings_per_token": true', '"role": "system"', '"Be brief."'):
        assert part in sent, f"{part} is not in the request:\n{sent}"
    page.browser.click("#settings .actions button")
    page.browser.run("const s = document.querySelector('#system'); s.value = ''; s.dispatchEvent(new Event('input'))")
    page.browser.click("#tab-live")
    page.quiet()


@check()
def live_panel_follows_the_server(page):
    page.fresh()
    with occupied(page.url):
        page.browser.wait("return document.querySelector('.state')?.innerText === 'Running'", "the running state")
        page.browser.wait("return Number(document.querySelector('#live').innerText.match(/([\\d.,]+)\\s*tok\\/s/)?.[1]) > 0", "a speed")
        panel = page.text("#live")
        for part in ("Decode", "Prefill", "output head", "Last step", "Busy", "KV cache", "running"):
            assert part in panel, f"{part} is not in the panel:\n{panel}"
        assert page.count(".lanes rect") > 0, "no layers are shown"
    page.browser.wait("return document.querySelector('.state')?.innerText === 'Idle'", "the idle state")
    assert re.search(r"Busy\s+0 %", page.text("#live")), f"a device is busy while the server is idle:\n{page.text('#live')}"
    page.quiet()


@check(mock_only=True)
def live_panel(page):
    page.fresh()
    page.send("slow")
    page.browser.wait("return document.querySelector('.state')?.innerText === 'Running'", "the running state")
    panel = page.text("#live")
    for part in ("tok/s", "layers 0–7", "layers 8–21", "Crossing", "Wait", "KV cache", "MiB of", "running"):
        assert part in panel, f"{part} is not in the panel:\n{panel}"
    assert page.count(".lanes rect.device-0") == 9 and page.count(".lanes rect.device-1") == 15
    page.browser.press("Escape")
    page.finish()
    page.quiet()


@check(mock_only=True)
def errors_in_place(page):
    for word, part in (("fail 503", "503"), ("break", "lost in the middle"), ("cut", "before the answer was complete")):
        page.fresh()
        page.ask(word)
        assert part in page.text(".error"), f"{word}: {page.text('.error')!r}"
        page.quiet(r"status of 503")
    page.fresh()
    page.ask("length")
    assert "limit of tokens" in page.text(".note")
    page.quiet()


@check(mock_only=True)
def reasoning_and_tools(page):
    page.fresh()
    page.ask("think")
    assert "Thought for" in page.text(".reasoning summary")
    assert not page.browser.run("return document.querySelector('.reasoning').open")
    page.fresh()
    page.ask("tool")
    assert "Tool call: weather" in page.text(".calls") and '"Reykjavik"' in page.text(".calls")
    page.quiet()


@check(mock_only=True)
def hostile_answer_stays_text(page):
    page.fresh()
    page.ask("hostile")
    assert page.browser.run("return window.hacked") is None
    assert page.count("#log :is(script, style, img, iframe, input:not([type=checkbox]), object, embed, form)") == 0
    hrefs = page.browser.run("return [...document.querySelectorAll('#log a')].map((a) => a.protocol)")
    assert hrefs and set(hrefs) == {"https:"}, hrefs
    page.quiet()


@check(mock_only=True)
def keys_and_missing_live_data(page):
    other = start_mock("--api-key", "secret", "--no-live", "--models", "2", "--delay", "0")
    page.browser.go(f"http://127.0.0.1:{other.server_port}/")
    page.browser.wait("return !document.querySelector('#model-pick').hidden", "the choice of models")
    assert "Not available" in page.text("#live")
    page.browser.type("#message", "Hello")
    page.browser.press("Enter")
    page.browser.wait("return document.querySelector('#key').open", "the question for a key")
    page.shoot("key")
    page.browser.type("#key-value", "secret")
    page.browser.press("Enter")
    page.browser.wait("return document.querySelector('.assistant .prose p') && document.querySelector('#stop').hidden", "the answer with the key")
    assert page.count(".error") == 0
    assert page.browser.run("return sessionStorage.getItem('api-key')") == "secret"
    assert page.browser.run("return localStorage.getItem('api-key')") is None
    page.quiet(r"status of 40[14]")
    other.shutdown()
    page.open()
    page.quiet()


@check()
def drawers_on_a_phone(page):
    page.browser.size(*SIZES["phone"])
    page.browser.click("#open-panel")
    assert page.browser.run("return document.querySelector('#main').inert && document.querySelector('#panel').contains(document.activeElement)")
    page.fits()
    page.browser.press("Escape")
    assert page.browser.run("return !document.querySelector('#main').inert && document.activeElement.id") == "open-panel"
    page.browser.size(*SIZES["laptop"])
    page.quiet()


@check()
def looks(page):
    """Screenshots in both themes and three sizes; nothing scrolls sideways and all text has enough contrast."""
    page.browser.size(*SIZES["laptop"])
    page.limit(60)
    page.fresh()
    page.ask("How is a model split between the CPU and the GPU?")
    page.ask("table")
    low = []
    with occupied(page.url):
        page.browser.wait("return document.querySelector('.state')?.innerText === 'Running'", "the running state")
        page.browser.run("return new Promise((resolve) => setTimeout(resolve, 2500))")
        for theme in ("light", "dark"):
            page.browser.scheme(theme)
            for name, size in SIZES.items():
                page.browser.size(*size)
                page.browser.run("const s = document.querySelector('#scroll'); s.scrollTop = s.scrollHeight")
                page.browser.run("return new Promise((resolve) => setTimeout(resolve, 400))")
                page.fits()
                page.shoot(f"{name}-{theme}")
                low += [f"{name} {theme}: {line}" for line in page.script("contrast.check.js")]
            page.browser.size(*SIZES["phone"])
            for drawer in ("side", "panel"):
                page.browser.click(f"#open-{drawer}")
                page.fits()
                page.shoot(f"phone-{drawer}-{theme}")
                low += [f"{drawer} {theme}: {line}" for line in page.script("contrast.check.js")]
                page.browser.press("Escape")
            page.browser.size(*SIZES["laptop"])
            for tab in ("card", "settings"):
                page.browser.click(f"#tab-{tab}")
                page.shoot(f"{tab}-{theme}")
                low += [f"{tab} {theme}: {line}" for line in page.script("contrast.check.js")]
            page.browser.click("#tab-live")
    assert not low, "contrast below 4.5:\n    " + "\n    ".join(sorted(set(low)))
    page.quiet()


@contextlib.contextmanager
def occupied(url):
    """Meanwhile two other clients ask again and again, so that the live panel has something to show."""
    ended = threading.Event()

    def ask():
        body = {"messages": [{"role": "user", "content": "slow"}], "stream": True, "max_tokens": 400}
        while not ended.is_set():
            request = urllib.request.Request(urljoin(url, "v1/chat/completions"), json.dumps(body).encode(), {"content-type": "application/json"})
            with urllib.request.urlopen(request) as response:
                while not ended.is_set() and response.readline():
                    pass

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def start_mock(*arguments):
    server = mock.serve(["--port", "0", *arguments])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def start_server(program):
    """A server of the demo model on the CPU, and its address."""
    command = [program, "serve", "--port", "0", "-ngl", "0", "-np", "4", "-c", "4096"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if "http://" not in line:
        raise SystemExit(f"{program} does not serve: {line!r}")
    return process, line.split()[-1]


def is_mock(url):
    try:
        with urllib.request.urlopen(urljoin(url, "mock")) as response:
            return response.status == 200
    except urllib.error.HTTPError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_mutually_exclusive_group()
    server.add_argument("--url", help="of a running server; without it the mock server is started")
    server.add_argument("--bilayer", help="a program whose server is started")
    parser.add_argument("--out", default="target/web", help="folder for the screenshots")
    parser.add_argument("--only", help="runs only the checks whose names contain this, after loading the page")
    options = parser.parse_args()
    process = None
    if options.bilayer:
        process, url = start_server(options.bilayer)
    elif options.url:
        url = options.url
    else:
        url = f"http://127.0.0.1:{start_mock('--delay', '0.004', '--live-seconds', '0.1').server_port}"
    try:
        return run(url.rstrip("/") + "/", options)
    finally:
        if process:
            process.kill()
            process.wait()


def run(url, options):
    """Runs the checks against a server."""
    os.makedirs(options.out, exist_ok=True)
    has_mock = is_mock(url)
    browser = Browser()
    failed = []
    try:
        page = Page(browser, url, options.out)
        browser.size(*SIZES["laptop"])
        browser.scheme("light")
        for function, mock_only in CHECKS:
            name = function.__name__
            if (mock_only and not has_mock) or (options.only and name != "loads" and options.only not in name):
                continue
            try:
                function(page)
                print(f"ok      page: {name.replace('_', ' ')}", flush=True)
            except Exception as error:
                failed.append(name)
                print(f"failed  page: {name.replace('_', ' ')}: {' '.join(str(error).split())}", flush=True)
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
                page.shoot(f"failed-{name}")
                browser.log()
                page.open()
    finally:
        browser.close()
    print(f"{len(failed)} failed" if failed else f"all checks hold; screenshots in {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
