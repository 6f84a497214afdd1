"""Serves the web page with the server's content security policy and plays the server's part.

    python3 tests/web/mock.py [--port 8099] [--api-key KEY] [--models 2] [--no-live] [--delay 0.02]

The last user message picks the answer: `hostile`, `table`, `think`, `tool`, `slow`, `echo`, `fail 503`, `break`, `cut`
and `length` play those cases, and anything else is answered with a few paragraphs. What is streamed is made up; no
number of the live panel was measured.
"""

import argparse
import json
import math
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "crates", "server", "web")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MIB = 1 << 20

PLAIN = """\
A transformer layer reads one vector per token and writes one back, so a model can be cut **between any two layers**. \
What crosses the cut is small: with a hidden size of 2048 it is 8 KiB per token, whatever the size of the weights.

### Why the cut pays

1. The GPU runs the layers that fit into its memory.
2. The CPU runs the rest, from its own memory.
3. Only hidden states cross, never weights.

Decode is bound by memory bandwidth, so the time of a step is close to

```python
def step_ms(layers, bytes_per_layer, bandwidth):
    # Weights are read once per step, however many rows there are.
    return sum(bytes_per_layer[i] / bandwidth[device] for i, device in enumerate(layers)) * 1e3
```

Run `bilayer plan model.gguf` to see where each layer would go, and why. The panel beside this text shows the same \
for the step that has just run.
"""

TABLE = """\
## Quantization types

| Type | Bits per weight | Size of 1 B parameters | Use |
|:-----|----------------:|-----------------------:|:----|
| `Q8_0` | 8.5 | 1.06 GB | reference quality |
| `Q6_K` | 6.56 | 0.82 GB | close to reference |
| `Q4_K` | 4.5 | 0.56 GB | the usual choice |
| `Q2_K` | 2.63 | 0.33 GB | when *nothing else* fits |

> A smaller type is faster as well: decode reads every weight once per token.

- [x] read the table
- [ ] measure with `bilayer bench`
  - on **your** machine
  - see <https://example.org/bench> or [the guide](https://example.org/guide "A guide")

---

Inline: ~~old~~ *new* ***both***, a formula \\(e^{i\\pi} = -1\\), snake_case_stays, 2 * 3 * 4, and a hard\nbreak.
"""

HOSTILE = """\
<script>window.hacked = 1</script> <img src=x onerror="window.hacked=2"> <svg onload=alert(1)>

[click](javascript:window.hacked=3) [data](data:text/html,<script>1</script>) [ok](https://example.org/?a=1&b=<x>)

![picture](https://example.org/track.png) ![x](javascript:alert(1)) <javascript:alert(1)> <a href="javascript:1">a</a>

```html"><script>window.hacked=4</script>
</code></pre><script>window.hacked = 5</script>
```

| <b>a</b> | [x](vbscript:1) |
|---|---|
| <iframe src=//example.org></iframe> | &lt;script&gt; |

> <style>*{display:none}</style>

# <h1 onclick=alert(1)>title</h1>

- <input autofocus onfocus=alert(1)>
"""

THOUGHT = "The question is about layers.\nEach layer is independent of where it runs, so the order is what matters. " * 4


class State:
    """What all connections share."""

    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.running = 0
        self.requests = 117
        self.tokens = 48_213
        self.steps = 9_204

    def live(self, tick):
        """One event of GET /live."""
        layers = 22
        on_gpu = 14
        decode = self.running or 1
        cpu = 20.2 + 2.5 * math.sin(tick / 4) + random.random()
        gpu = 11.4 + 1.2 * math.sin(tick / 3 + 1) + random.random()
        crossing, wait = 0.9 + random.random() / 5, 2.0 + random.random()
        prefill = 512 if tick % 9 == 0 else 0
        return {
            "model": "TinyLlama-1.1B-Chat-Q4_K_M",
            "devices": [
                {"name": "CPU", "busy": cpu / 40, "memory_used_bytes": 412 * MIB, "memory_bytes": 15_900 * MIB},
                {"name": "GPU NVIDIA GeForce RTX 4060", "busy": gpu / 30, "memory_used_bytes": 731 * MIB, "memory_bytes": 8_188 * MIB},
            ],
            "embedding": 0,
            "layers": [0] * (layers - on_gpu) + [1] * on_gpu,
            "output": 1,
            "step": {
                "ms": cpu + gpu + crossing + wait,
                "devices_ms": [cpu, gpu],
                "crossing_ms": crossing,
                "wait_ms": wait,
                "decode_rows": decode,
                "prefill_rows": prefill,
            },
            "decode_tps": 1000 * decode / (cpu + gpu + crossing + wait),
            "prefill_tps": 480 + 60 * random.random() if prefill else 0.0,
            "running": self.running,
            "waiting": max(self.running - 4, 0),
            "kv_used": min(0.12 + 0.05 * self.running, 1.0),
            "steps": self.steps,
            "requests_total": self.requests,
            "tokens_total": self.tokens,
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def options(self):
        return self.server.state.options

    def send(self, status, body, kind="application/json", headers=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message, kind, headers=()):
        self.send(status, {"error": {"code": status, "message": message, "type": kind}}, headers=headers)

    def allowed(self):
        key = self.options.api_key
        if not key or self.headers.get("authorization") == f"Bearer {key}":
            return True
        self.fail(401, "Invalid API Key", "authentication_error")
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/mock":
            return self.send(200, {"mock": True})
        if path == "/v1/models":
            names = ["TinyLlama-1.1B-Chat-Q4_K_M", "Qwen3-0.6B-Q8_0", "SmolLM2-360M-Instruct-Q8_0"][: self.options.models]
            return self.send(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
        if path == "/props":
            return self.allowed() and self.send(200, PROPS)
        if path == "/live":
            if self.options.no_live:
                return self.fail(404, "File Not Found", "not_found_error")
            return self.allowed() and self.stream_live()
        return self.send_file("index.html" if path == "/" else path[1:])

    def send_file(self, name):
        path = os.path.join(PAGE, name)
        kind = KINDS.get(os.path.splitext(name)[1])
        if "/" in name or not kind or not os.path.isfile(path):
            return self.fail(404, "File Not Found", "not_found_error")
        headers = [("content-security-policy", POLICY), ("x-content-type-options", "nosniff"), ("cache-control", "no-cache")]
        with open(path, "rb") as file:
            self.send(200, file.read(), f"{kind}; charset=utf-8", headers)

    def start_events(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data):
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def stream_live(self):
        self.start_events()
        try:
            for tick in range(100_000):
                with self.server.state.lock:
                    is_running = self.server.state.running > 0
                    event = self.server.state.live(tick)
                # The first event tells a new page the placement; later ones come while something runs.
                if tick == 0 or is_running:
                    self.event(event)
                time.sleep(self.options.live_seconds)
        except OSError:
            pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.allowed():
            return
        if self.path != "/v1/chat/completions":
            return self.fail(404, "File Not Found", "not_found_error")
        request = json.loads(body)
        state = self.server.state
        with state.lock:
            state.running += 1
            state.requests += 1
        try:
            self.complete(request)
        except OSError:
            pass
        finally:
            with state.lock:
                state.running -= 1

    def complete(self, request):
        users = [message["content"] for message in request["messages"] if message["role"] == "user"]
        word, _, rest = users[-1].partition(" ")
        if word == "fail":
            status = int(rest or 500)
            return self.fail(status, f"The mock fails with {status} as it was asked to.", "server_error", [("retry-after", "2")])
        text = {"hostile": HOSTILE, "table": TABLE}.get(word, PLAIN)
        delay = 0.15 if word == "slow" else self.options.delay
        if word == "echo":
            text = "```json\n" + json.dumps(request, indent=1) + "\n```\n"
        self.start_events()
        self.start = time.time()
        self.chunk(request, {"role": "assistant", "content": None})
        if word == "think":
            for piece in pieces(THOUGHT):
                self.chunk(request, {"reasoning_content": piece}, delay=delay)
        if word == "tool":
            return self.call_tool(request, delay)
        made = 0
        for piece in pieces(text):
            self.chunk(request, {"content": piece}, delay=delay)
            made += 1
            if word == "break" and made > 40:
                return self.event({"error": {"code": 500, "message": "The device was lost in the middle of a step.", "type": "server_error"}})
            if word == "cut" and made > 40:
                return None
        return self.end_answer(request, "length" if word == "length" else "stop", made)

    def call_tool(self, request, delay):
        self.chunk(request, {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}]})
        for piece in ['{"city":', ' "Reykjav', 'ik", "unit"', ': "celsius"}']:
            self.chunk(request, {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}, delay=delay)
        self.end_answer(request, "tool_calls", 24)

    def chunk(self, request, delta, finish=None, delay=0.0):
        time.sleep(delay)
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": request.get("model", "mock"), "choices": [choice]})

    def end_answer(self, request, reason, made):
        self.chunk(request, {}, reason)
        ms = (time.time() - self.start) * 1000
        read = sum(len(str(message["content"]).split()) for message in request["messages"]) + 12
        timings = {
            "cache_n": read // 3,
            "prompt_n": read - read // 3,
            "prompt_ms": 96.0,
            "prompt_per_second": (read - read // 3) / 0.096,
            "predicted_n": made,
            "predicted_ms": ms,
            "predicted_per_second": 1000 * made / max(ms, 1),
            "queue_ms": 1.8,
            "crossing_ms": 0.9 * made,
        }
        devices = [{"name": "CPU", "layers": 8, "busy_ms": 21.0 * made}, {"name": "GPU NVIDIA GeForce RTX 4060", "layers": 14, "busy_ms": 12.0 * made}]
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": [], "usage": usage, "timings": timings, "devices": devices})
        self.event("[DONE]")
        with self.server.state.lock:
            self.server.state.tokens += made
            self.server.state.steps += made


def pieces(text):
    """Text in pieces of about a token's length."""
    at = 0
    while at < len(text):
        length = random.randint(2, 6)
        yield text[at : at + length]
        at += length


PROPS = {
    "model_path": "/home/ada/models/TinyLlama-1.1B-Chat-v1.0.Q4_K_M.gguf",
    "model_alias": "TinyLlama-1.1B-Chat-Q4_K_M",
    "build_info": "bilayer 0.9.0",
    "total_slots": 4,
    "default_generation_settings": {
        "n_ctx": 4096,
        "params": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0, "seed": 4294967295, "max_tokens": -1},
    },
    "chat_template": "{% for message in messages %}\n{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}\n{% endfor %}",
    "bilayer": {
        "sha256": "9fecc3b3cd76bba89d504f29b616eedf7da85b96540e490ca5824d3f7d2776a0",
        "placement_map": "embedding     CPU    66 MiB\nlayers 0-7    CPU   211 MiB\nlayers 8-21   GPU   369 MiB\noutput head   GPU    52 MiB",
        "quantization": "Q4_K_M",
        "parameters": 1_100_048_384,
    },
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        # A closed connection is what the page does when it stops an answer.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*_)


def serve(argv=None):
    """A server on its port, not yet running."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8099, help="0 picks one")
    parser.add_argument("--api-key")
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--no-live", action="store_true")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds between chunks")
    parser.add_argument("--live-seconds", type=float, default=1.0, help="between events of /live")
    server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
    options = parser.parse_args(argv)
    server.server_address = ("127.0.0.1", options.port)
    server.server_bind()
    server.server_activate()
    server.state = State(options)
    return server


if __name__ == "__main__":
    mock = serve()
    print(f"listening on http://127.0.0.1:{mock.server_port}", flush=True)
    mock.serve_forever()
