//! Flags of llama-server that `serve` and `batch` do not have.

use super::Means::{Accept, Note, OnlyFor, Refuse};
use super::Takes::{Nothing, Value};
use super::{Flags, NO_TOOLS};

const GRAMMAR: &str = "a request sets `grammar`";
const SCHEMA: &str = "a request sets `json_schema`, or `response_format`";
const ORIGINS: &str =
    "pages of the origins of --cors-origins may use every method, header and credential";
const PAGE: &str = "the web page keeps its settings in the browser; remove the flag";

/// Names and meanings; these win over those of all commands.
pub const FLAGS: &[Flags] = &[
    // What a request sets.
    (&["--ignore-eos"], Nothing, Refuse("a request sets `ignore_eos`")),
    (&["--grammar", "--grammar-file"], Value, Refuse(GRAMMAR)),
    (&["-j", "--json-schema", "-jf", "--json-schema-file"], Value, Refuse(SCHEMA)),
    (&["--keep"], Value, OnlyFor(&["0"], &Refuse("a request sets `n_keep`, for --context-shift"))),
    (&["--embd-normalize"], Value, Refuse("a request to /embeddings sets `embd_normalize`")),
    (&["-r", "--reverse-prompt", "--stop"], Value, Refuse("a request sets `stop`")),
    (&["--prefill-assistant"], Nothing, Accept),
    (&["--no-prefill-assistant"], Nothing, Refuse("a request sets `continue_final_message`")),
    (&["--props"], Nothing, Note("/props shows settings; a request sets what it needs itself")),
    (
        &["--reasoning-effort"],
        Value,
        OnlyFor(
            &["default"],
            &Refuse(
                "a request sets `reasoning_effort`, or give --chat-template-kwargs '{\"reasoning_effort\": \"low\"}'",
            ),
        ),
    ),
    (
        &["--skip-chat-parsing"],
        Nothing,
        Refuse(
            "--reasoning-format none leaves reasoning in the answer, and a request without `tools` has no calls",
        ),
    ),
    // How answers are made.
    (&["-sp", "--special"], Nothing, Refuse("answers have no control tokens; remove the flag")),
    (&["--no-perf"], Nothing, Note("answers are timed in any case")),
    (&["--no-escape"], Nothing, Note("texts of requests have the escapes of JSON")),
    (
        &["--spm-infill"],
        Nothing,
        Refuse("/infill puts the prefix before the suffix; remove the flag"),
    ),
    (
        &["--kv-unified-per-slot"],
        Value,
        Refuse("a request has --ctx-size divided by --parallel, or all of it with --kv-unified"),
    ),
    // Where the server is found.
    (
        &["--api-prefix"],
        Value,
        Refuse("paths have no prefix; a reverse proxy in front of the server can add one"),
    ),
    (
        &["--path"],
        Value,
        Refuse("no other files are served; serve them elsewhere and name that in --cors-origins"),
    ),
    (&["--reuse-port"], Nothing, Refuse("each server has a port of its own; give another --port")),
    (&["--cors-methods", "--cors-headers"], Value, Refuse(ORIGINS)),
    (&["--cors-credentials", "--no-cors-credentials"], Nothing, Refuse(ORIGINS)),
    (&["--ui-config", "--webui-config", "--ui-config-file"], Value, Refuse(PAGE)),
    (&["--webui-config-file"], Value, Refuse(PAGE)),
    // Models.
    (
        &["--models-preset"],
        Value,
        Refuse("give --models-dir DIR, or --add-model NAME=PATH for each model"),
    ),
    (&["--models-autoload"], Nothing, Accept),
    (
        &["--no-models-autoload"],
        Nothing,
        Refuse("a model is loaded when it is first asked for; remove the flag"),
    ),
    (
        &["--sleep-idle-seconds"],
        Value,
        OnlyFor(
            &["-1"],
            &Refuse("--models-max and --models-memory unload the models that are used least"),
        ),
    ),
    // Tools that run in the server.
    (&["--tools", "--tools-runtime", "--mcp-servers-config"], Value, Refuse(NO_TOOLS)),
    (&["--mcp-servers-json"], Value, Refuse(NO_TOOLS)),
    (&["-ag", "--agent", "--ui-mcp-proxy", "--webui-mcp-proxy"], Nothing, Refuse(NO_TOOLS)),
    (&["-no-ag", "--no-agent", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy"], Nothing, Accept),
];
