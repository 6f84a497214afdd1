#!/usr/bin/env python3
"""Stands in for llama-server: maps the models of its tests to local files and drops flags that ask for our defaults."""
import os
import sys

REPOS = {
    "ggml-org/test-model-stories260K": "stories260K.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "stories260K.gguf",
    "ggml-org/stories15M_MOE": "stories260K.gguf",
}
FILES = {"bert-bge-small/ggml-model-f16.gguf": "minilm.gguf"}
SWITCHES = {
    "--cont-batching", "--slots", "--swa-full", "--context-shift", "--no-cache-idle-slots", "--ui-mcp-proxy",
    "--backend_sampling", "--no-mmproj", "--no-models-autoload", "--no-jinja",
}
VALUES = {
    "--cache-ram", "--media-path", "--lora", "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min",
    "--sleep-idle-seconds", "--models-preset", "--grp-attn-n", "--grp-attn-w", "--tools", "--mcp-servers-config",
    "--mcp-servers-json", "--tools-runtime", "--mmproj-url", "--slot-save-path", "--model-url",
}


def main():
    given, kept = sys.argv[1:], []
    is_control = bool(os.environ.get("IS_CONTROL"))
    repo = file = None
    while given:
        flag = given.pop(0)
        if flag == "--hf-repo":
            repo = given.pop(0)
        elif flag == "--hf-file":
            file = given.pop(0)
        elif flag == "--offline":
            pass
        elif not is_control and flag in SWITCHES:
            pass
        elif not is_control and flag in VALUES:
            given.pop(0)
        else:
            kept.append(flag)
    model = FILES.get(file) or REPOS.get(repo)
    if model:
        kept += ["--model", os.path.join(os.environ["MODELS"], model)]
    if not is_control and "--cors-origins" not in kept:
        # llama-server allows every origin unless told otherwise.
        kept += ["--cors-origins", "*"]
    program = os.environ["BILAYER"]
    os.execv(program, [program] + ([] if is_control else ["serve"]) + kept)


if __name__ == "__main__":
    main()
