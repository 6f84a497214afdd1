"""Says which model files another reader opens, each in a process of its own.

    peers.py gguf|llama.cpp FOLDER FIRST COUNT

The files are FOLDER/NUMBER.gguf. Prints `NUMBER<tab>good|bad|crash|slow<tab>REASON` for each.
"""
import os
import resource
import signal
import sys

reader, folder, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
# Of CPU time, for other work may slow all.
SECONDS, BYTES = 10, 4 << 30
os.environ["GGML_NO_BACKTRACE"] = "1"

if reader == "gguf":
    import gguf
else:
    import ctypes

    import llama_cpp as llama

    errors = []
    note = llama.llama_log_callback(lambda level, text, data: errors.append(text.decode(errors="replace")) if level == 4 else None)
    llama.llama_log_set(note, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0


def opened(path):
    """Why the reader does not open the file; `None` if it does."""
    if reader == "gguf":
        try:
            gguf.GGUFReader(path)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None
    if llama.llama_model_load_from_file(path.encode(), params):
        return None
    lines = [line.strip() for line in "".join(errors).splitlines() if line.strip()]
    # The first line names the fault, the second what the loader makes of it.
    return " / ".join(lines[:2]) or "no reason given"


def asked(number):
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        os.dup2(into, 1)
        os.dup2(into, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        reason = opened(os.path.join(folder, f"{number}.gguf"))
        if reason is not None:
            os.write(1, reason.encode(errors="replace"))
        os._exit(0 if reason is None else 3)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) == signal.SIGXCPU
        return "slow" if slow else "crash", f"signal {os.WTERMSIG(status)} {said}"
    return ("good", "") if os.WEXITSTATUS(status) == 0 else ("bad", said)


for number in range(first, first + count):
    verdict, reason = asked(number)
    reason = " ".join("".join(letter if letter.isprintable() else " " for letter in reason).split())
    print(number, verdict, reason[:300], sep="\t", flush=True)
