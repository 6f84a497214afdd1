"""Schemathesis: requests made from /openapi.json, valid and not, of which none may end with an error of the server."""
import os
import re
import subprocess
import sys
import tempfile

from common import Server, check, equal, main

#: Requests that must have been made for the check to mean something.
LEAST = 1000

#: 501 says that a model or this server does not offer something, as llama-server does.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
"""

CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"


def tried(server):
    """Lets Schemathesis try all endpoints of a server."""
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "schemathesis.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
        command = [program, "--config-file", config, "run", server.url + "/openapi.json", "--checks", CHECKS, "--seed", "1",
                   "--exclude-path", "/live", "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--request-timeout", "30"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    print(ran.stdout, file=sys.stderr)
    equal(ran.returncode, 0, f"the exit code after {ran.stdout[-600:]}")
    count = int(re.search(r"([0-9]+) generated", ran.stdout).group(1))
    assert count >= LEAST, f"only {count} requests were made"
    equal(server.get("/health"), '{"status":"ok"}', "the state afterwards")


@check
def a_decoder_answers_all_requests_of_its_schema():
    tried(Server("-np", "2", "-c", "512", "-n", "8", "--metrics", "--timeout", "20"))


@check
def an_encoder_answers_all_requests_of_its_schema():
    tried(Server("-m", os.environ["ENCODER"], "--metrics", "--timeout", "20"))


if __name__ == "__main__":
    main("schemathesis")
