#!/usr/bin/env python3
"""Stands in for llama-server: maps the models of its tests to local files and drops flags the server does not have."""
import os
import sys

REPOS = {
    "ggml-org/test-model-stories260K": "stories260K.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "stories260K.gguf",
    "ggml-org/stories15M_MOE": "stories260K.gguf",
}
FILES = {
    "bert-bge-small/ggml-model-f16.gguf": "minilm.gguf",
    "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "reranker.gguf",
    "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "split-00001-of-00003.gguf",
}
# Flags that ask for defaults or for what `bilayer serve` does not have, without and with a value.
SWITCHES = {
    "--cont-batching", "--slots", "--swa-full", "--context-shift", "--no-cache-idle-slots", "--ui-mcp-proxy",
    "--backend_sampling", "--no-mmproj", "--no-models-autoload", "--no-jinja",
}
VALUES = {
    "--cache-ram", "--media-path", "--lora", "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min",
    "--sleep-idle-seconds", "--models-preset", "--grp-attn-n", "--grp-attn-w", "--tools", "--mcp-servers-config",
    "--mcp-servers-json", "--tools-runtime", "--mmproj-url", "--slot-save-path", "--model-url",
}


def mapped(given, known):
    """The server's arguments. `known` has the flags it documents; all are passed on if that is not known."""
    kept, repo, file = [], None, None
    given = list(given)
    while given:
        flag = given.pop(0)
        is_missing = known is not None and flag not in known
        if flag == "--hf-repo":
            repo = given.pop(0)
        elif flag == "--hf-file":
            file = given.pop(0)
        elif flag == "--offline" or (is_missing and flag in SWITCHES):
            pass
        elif is_missing and flag in VALUES:
            given.pop(0)
        else:
            kept.append(flag)
    model = FILES.get(file) or REPOS.get(repo)
    if model:
        kept += ["--model", os.path.join(os.environ["SUITE_MODELS"], model)]
    return kept


def main():
    server, flags = os.environ["SUITE_SERVER"], os.environ.get("SUITE_FLAGS")
    arguments = mapped(sys.argv[1:], flags and set(flags.split()))
    if flags:
        # llama-server allows every origin unless told otherwise.
        origins = [] if "--cors-origins" in arguments else ["--cors-origins", "*"]
        arguments = ["serve", *arguments, *origins]
    os.execv(server, [server, *arguments])


if __name__ == "__main__":
    main()
