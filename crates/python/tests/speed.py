"""Compares the package's speed with the command's, in pairs of runs one after the other.

    python crates/python/tests/speed.py --bilayer PROGRAM --model model.gguf --encoder encoder.gguf

It prints the ratio of each pair, Python's time by the command's, and fails if a median misses its bar. Pairs follow each other
closely, so what else runs on the machine slows both.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

GENERATE = """
import sys, time, bilayer
model = bilayer.Bilayer(sys.argv[1], gpu_layers=0, threads=int(sys.argv[2]), context=1024)
times = []
for token in model.generate("ROMEO:", max_tokens=int(sys.argv[3]), temperature=0, ignore_eos=True):
    times.append(time.perf_counter())
print((times[-1] - times[0]) / (len(times) - 1))
"""

EMBED = """
import sys, bilayer
texts = open(sys.argv[2]).read().splitlines()
rows = bilayer.Bilayer(sys.argv[1], gpu_layers=0, threads=int(sys.argv[3])).embed(texts)
assert len(rows) == len(texts)
"""


def output(*arguments):
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def generate_pair(options):
    """Seconds for a token after the first: Python's, as its reader sees it, and the command's."""
    tokens = str(options.tokens)
    python = float(output(sys.executable, "-c", GENERATE, options.model, str(options.threads), tokens))
    flags = ["-p", "ROMEO:", "-n", tokens, "--temp", "0", "--ignore-eos", "-ngl", "0", "-c", "1024", "--json"]
    document = output(options.bilayer, "run", "-m", options.model, "-t", str(options.threads), *flags)
    return python, command_seconds(json.loads(document))


def command_seconds(document):
    """Seconds for a token by the JSON of `bilayer run`."""
    return 1 / document["timings"]["generate_tps"]


def embed_pair(options, texts):
    """Seconds of whole processes that embed the texts."""
    seconds = []
    for command in (
        [sys.executable, "-c", EMBED, options.encoder, texts, str(options.threads)],
        [options.bilayer, "embed", "-m", options.encoder, "-ngl", "0", "-t", str(options.threads), "-f", texts],
    ):
        begin = time.perf_counter()
        output(*command)
        seconds.append(time.perf_counter() - begin)
    return seconds


def report(name, pairs, bar):
    """Print a table; return whether the median ratio is within the bar."""
    ratios = [python / command for python, command in pairs]
    for (python, command), ratio in zip(pairs, ratios):
        print(f"{name}: Python {1e3 * python:.3f} ms, command {1e3 * command:.3f} ms, ratio {ratio:.3f}")
    median = statistics.median(ratios)
    print(f"{name}: median ratio {median:.3f}, bar {bar}")
    return median <= bar


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bilayer", required=True)
    parser.add_argument("--model")
    parser.add_argument("--encoder")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    good = True
    if options.model:
        good &= report("generate", [generate_pair(options) for _ in range(options.pairs)], 1.03)
    if options.encoder:
        with tempfile.TemporaryDirectory() as folder:
            texts = pathlib.Path(folder) / "texts.txt"
            texts.write_text("".join(f"entry {row * 7919 % options.texts} of the ledger\n" for row in range(options.texts)))
            pairs = [embed_pair(options, str(texts)) for _ in range(options.pairs)]
        good &= report("embed", pairs, 1.05)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
