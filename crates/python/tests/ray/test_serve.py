"""What a fleet of replicas under Ray Serve promises, with openai's client."""

import os
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from ray import serve

from bilayer.ray import app
from bilayer.ray._process import Server
from conftest import ARGUMENTS, BINARY, DEMO, PORT, processes


def stream(client, prompt, tokens):
    """Times of the chunks of an answer, and the replica's name."""
    times, text = [], ""
    options = {"stream": True, "temperature": 0, "extra_body": {"ignore_eos": True}}
    raw = client.completions.with_raw_response.create(model="demo", prompt=prompt, max_tokens=tokens, **options)
    for chunk in raw.parse():
        times.append(time.perf_counter())
        text += chunk.choices[0].text
    assert chunk.choices[0].finish_reason == "length"
    return times, text, raw.headers.get("x-bilayer-replica")


def together(clients, tokens, streams=8):
    """The mean gap of so many streams at once, in ms."""
    with ThreadPoolExecutor(streams) as pool:
        found = list(pool.map(lambda number: stream(clients, f"SCENE {number}.\n", tokens), range(streams)))
    gaps = [(times[-1] - times[0]) / (len(times) - 1) for times, _, _ in found]
    return 1e3 * statistics.mean(gaps)


@pytest.fixture(scope="module")
def direct():
    """A client of a server without Ray."""
    server = Server(["-m", DEMO, "-np", "8", *ARGUMENTS], binary=BINARY)
    yield openai.OpenAI(base_url=server.url + "/v1", api_key=server.key)
    server.stop()


@pytest.mark.parametrize("streams", [1, 8])
def test_streams_have_small_gaps(client, direct, measured, streams):
    for one in (direct, client):
        together(one, 20, streams)
    pairs = [(together(direct, 400, streams), together(client, 400, streams)) for _ in range(5)]
    ratio = statistics.median(fleet / alone for alone, fleet in pairs)
    measured[f"gap_ms_direct_and_ray_{streams}"] = {"pairs": pairs, "ratio": ratio}
    assert ratio < 2, pairs


def test_both_replicas_give_the_direct_text(client, direct):
    options = {"model": "demo", "prompt": "ROMEO:", "max_tokens": 24, "temperature": 0.8, "seed": 42}
    expected = direct.completions.create(**options).choices[0].text
    names = set()
    for _ in range(40):
        raw = client.completions.with_raw_response.create(**options)
        names.add(raw.headers["x-bilayer-replica"])
        assert raw.parse().choices[0].text == expected
        if len(names) == 2:
            break
    assert len(names) == 2


def test_many_streams_use_both_replicas(client, measured):
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda number: stream(client, f"Speaker {number}:", 64), range(64)))
    assert all(text for _, text, _ in found)
    names = [name for _, _, name in found]
    counts = sorted(names.count(name) for name in set(names))
    measured["64_streams_by_replica"] = counts
    assert len(counts) == 2 and counts[0] >= 16, counts


def test_a_prefix_goes_to_the_replica_that_has_it(client, measured):
    base = "".join(f"Act {number}: the duke of {number * 7919} enters. " for number in range(150))
    asked = lambda prompt: client.completions.with_raw_response.create(model="demo", prompt=prompt, max_tokens=2)
    prefix_tokens = asked(base).parse().usage.prompt_tokens
    assert prefix_tokens >= 2000
    hits = 0
    for number in range(20):
        raw = asked(base + f"Line {number}.")
        cached = raw.parse().usage.prompt_tokens_details.cached_tokens
        hits += cached >= 0.95 * prefix_tokens
        # Others in between, which have nothing in common.
        asked(f"{number}: " + "unrelated words " * 40)
    measured["prefix"] = {"tokens": prefix_tokens, "asked": 20, "on_the_replica_that_has_it": hits}
    assert hits >= 18


def test_a_reader_that_leaves_frees_its_slot(client, fleet):
    answer = client.completions.create(
        model="demo", prompt="ROMEO:", max_tokens=3900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(answer))
    answer.close()
    deadline = time.monotonic() + 10
    while sum(load(fleet)) > 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def load(handle):
    """Requests that each replica has, as its autoscaling statistics say."""
    answers = [handle.record_autoscaling_stats.remote() for _ in range(12)]
    return [answer.result()["requests"] for answer in answers]


def test_refusals(client):
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="demo", prompt="a", max_tokens=-5)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="fleet"):
        client.with_options(base_url=f"http://127.0.0.1:{PORT}").get("/slots", cast_to=object)
    with pytest.raises(openai.APIStatusError, match="larger"):
        client.completions.create(model="demo", prompt="a" * (9 << 20))


@pytest.mark.parametrize("victim", ["child", "own"])
def test_a_killed_replica_is_replaced(client, fleet, measured, victim):
    before = processes(fleet)
    assert len(before) == 2 and len({one["node"] for one in before.values()}) == 2
    stop, failures, done = threading.Event(), [], []

    def work(number):
        while not stop.is_set():
            try:
                answer = client.completions.create(model="demo", prompt=f"{number}", max_tokens=50)
                done.append(answer.choices[0].text)
            except openai.OpenAIError as error:
                failures.append(error)

    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(work, number)
        time.sleep(2)
        gone = next(iter(before.values()))
        os.kill(gone[victim], signal.SIGKILL)
        killed = time.monotonic()
        live = {}
        while len(live) < 2 and time.monotonic() < killed + 60:
            live = {name: one for name, one in processes(fleet, 2, 1).items() if name != gone["replica"]}
        seconds = time.monotonic() - killed
        stop.set()
    measured[f"killed_{victim}"] = {"replaced_s": seconds, "calls": len(done), "failed": len(failures)}
    assert not failures and len(live) == 2 and seconds < 30, (failures, live, seconds)
    if victim == "own":
        # The child ends with its parent.
        assert not os.path.exists(f"/proc/{gone['child']}")


def test_load_starts_a_replica(cluster, client, measured):
    application = app(
        DEMO,
        replicas=(1, 2),
        parallel=2,
        binary=BINARY,
        args=ARGUMENTS,
        autoscaling={"upscale_delay_s": 1, "metrics_interval_s": 1, "look_back_period_s": 2},
    )
    serve.run(application, name="scaled", route_prefix="/scaled")
    try:
        scaled = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/scaled/v1", api_key="none")
        engine = serve.get_deployment_handle("engine", "scaled")
        assert len(processes(engine, 2, 2)) == 1
        stop, begin = threading.Event(), time.monotonic()

        def work(number):
            while not stop.is_set():
                scaled.completions.create(
                    model="demo", prompt=f"{number}", max_tokens=400, extra_body={"ignore_eos": True}
                )

        with ThreadPoolExecutor(8) as pool:
            work_done = [pool.submit(work, number) for number in range(8)]
            found = processes(engine, 2, 90)
            measured["second_replica_s"] = time.monotonic() - begin
            stop.set()
        assert len(found) == 2 and not any(job.exception() for job in work_done)
    finally:
        serve.delete("scaled")
