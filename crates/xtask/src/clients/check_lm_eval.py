"""lm-evaluation-harness: scores of `local-completions` against two computations without the server.

One is reference.py, which shares no code with Bilayer. Its weights are the same but its arithmetic is not quantized, so
scores agree within TOLERANCE per token, and the mean of many within MEAN. The other is `bilayer perplexity`, the same engine without the server: its
scores must agree within SAME per token.
"""
import functools
import json
import math
import os
import subprocess
import tempfile

import lm_eval
import lm_eval.tasks

from common import check, demo, equal, main, near
from reference import Reference

TOLERANCE = 0.1
MEAN = 0.01
SAME = 0.002

TEXT = """ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.
Arise, fair sun, and kill the envious moon,
Who is already sick and pale with grief,
That thou her maid art far more fair than she.

KING RICHARD III:
Now is the winter of our discontent
Made glorious summer by this sun of York;
And all the clouds that lour'd upon our house
In the deep bosom of the ocean buried.
"""
CHOICES = [
    {"context": "KING RICHARD", "choices": [" III:", " of", " the sea"], "label": 0},
    {"context": "ROMEO:\nBut, soft! what light through yonder", "choices": [" king", " window breaks?", " lord, my lord"], "label": 1},
    {"context": "First Citizen:\nWe are accounted poor", "choices": [" citizens, the patricians good.", " lord", ", sir."], "label": 0},
    {"context": "My", "choices": [" window", " zeal", " lord"], "label": 2},
]


@functools.cache
def reference():
    return Reference(os.environ["DEMO"])


@functools.cache
def folder():
    """A folder with the tasks, their data and the tokenizer."""
    place = tempfile.mkdtemp(prefix="bilayer-lm-eval-")
    reference().tokenizer().save_pretrained(place)
    paragraphs = TEXT.strip().split("\n\n")
    write_task(place, "choice", CHOICES, output_type="multiple_choice", doc_to_text="{{context}}", doc_to_choice="{{choices}}", doc_to_target="{{label}}", metrics=["acc"])
    write_task(place, "rolling", [{"text": text} for text in paragraphs], output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}", metrics=["byte_perplexity"])
    pairs = [{"context": context, "target": target} for context, target, _ in windows()[1]]
    write_task(place, "windows", pairs, output_type="loglikelihood", doc_to_text="{{context}}", doc_to_target="{{target}}", metrics=["perplexity"])
    return place


def write_task(place, name, items, metrics, **fields):
    data = os.path.join(place, f"{name}.jsonl")
    with open(data, "w") as file:
        file.writelines(json.dumps(item) + "\n" for item in items)
    task = {
        "task": f"bilayer_{name}", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data}},
        "test_split": "test", "target_delimiter": "", "metric_list": [{"metric": metric} for metric in metrics], **fields,
    }
    with open(os.path.join(place, f"{name}.yaml"), "w") as file:
        json.dump(task, file)


@functools.cache
def tokenizer():
    return reference().tokenizer()


def encode(text):
    return tokenizer()(text, add_special_tokens=False).input_ids


@functools.cache
def windows():
    """A length of windows, and for each window of the text the part before and the part that is scored, with its tokens.

    `bilayer perplexity` puts the first token of texts at the start of each window and scores its second half. The
    length is one at which the parts have the same tokens alone and together, and begin with white space where lm-eval
    moves it.
    """
    tokens = encode("<|endoftext|>" + TEXT.rstrip("\n"))
    for length in range(40, len(tokens) // 2):
        found = []
        for start in range(0, len(tokens) // length * length, length):
            window = [tokens[0], *tokens[start + 1:start + length]]
            cut = length // 2 + 1
            context, target = tokenizer().decode(window[:cut]), tokenizer().decode(window[cut:])
            if encode(context + target) != window or encode(context) != window[:cut]:
                break
            if context != context.rstrip() or target == target.lstrip():
                break
            found.append((context, target, window[cut:]))
        else:
            return length, found
    raise AssertionError("no length of windows fits")


@functools.cache
def results(concurrent):
    arguments = {
        "base_url": demo().v1 + "/completions", "model": "demo", "tokenizer": folder(), "tokenizer_backend": "huggingface",
        "max_length": 512, "num_concurrent": concurrent, "max_retries": 1,
    }
    manager = lm_eval.tasks.TaskManager(include_path=folder(), include_defaults=False)
    names = [f"bilayer_{name}" for name in ("choice", "rolling", "windows")]
    return lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0, batch_size=1
    )


def samples(name, concurrent=1):
    return sorted(results(concurrent)["samples"][f"bilayer_{name}"], key=lambda sample: sample["doc_id"])


@check
def tokenizers_agree():
    for text in (TEXT, *(item["context"] for item in CHOICES)):
        equal(demo().post("/tokenize", {"content": text, "add_special": False})["tokens"], encode(text), "the tokens")


@check
def multiple_choice_equals_the_reference():
    right = greedy = 0
    for sample, item in zip(samples("choice"), CHOICES, strict=True):
        scores = []
        for (response,), choice in zip(sample["resps"], item["choices"], strict=True):
            found, is_greedy = response
            context, whole = encode(item["context"]), encode(item["context"] + choice)
            expected, is_best, margin = reference().score(context, whole[len(context):])
            near(float(found), expected, TOLERANCE * (len(whole) - len(context)), f"the score of {choice!r}")
            if margin > 2 * TOLERANCE:
                equal(bool(is_greedy), is_best, f"whether {choice!r} is greedy")
                greedy += is_best
            scores.append(expected)
        right += scores.index(max(scores)) == item["label"]
    assert 0 < right and 0 < greedy, f"{right} right, {greedy} greedy: the items show too little"
    near(results(1)["results"]["bilayer_choice"]["acc,none"], right / len(CHOICES), 1e-9, "the accuracy")


@check
def rolling_equals_the_reference():
    total = size = 0
    for sample, text in zip(samples("rolling"), TEXT.strip().split("\n\n"), strict=True):
        found = float(sample["resps"][0][0])
        tokens = encode(text)
        expected, _, _ = reference().score([0], tokens)
        near(found, expected, MEAN * len(tokens), "the score of a paragraph")
        total, size = total + found, size + len(text.encode())
    near(results(1)["results"]["bilayer_rolling"]["byte_perplexity,none"], math.exp(-total / size), 1e-6, "byte_perplexity")


@check
def scores_equal_those_of_the_engine_alone():
    length, expected = windows()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(TEXT)
        file.flush()
        command = [os.environ["BILAYER"], "perplexity", "-f", file.name, "-ngl", "0", "-c", str(length), "--json"]
        alone = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    count = sum(len(tokens) for _, _, tokens in expected)
    equal((alone["tokens"], alone["windows"]), (count, len(expected)), "the number of scored tokens")
    found = sum(float(sample["resps"][0][0][0]) for sample in samples("windows"))
    near(found / count, -math.log(alone["perplexity"]), SAME, "the mean score")


@check
def concurrent_requests_get_the_same_scores():
    for name in ("choice", "windows"):
        for one, other in zip(samples(name), samples(name, 4), strict=True):
            for (alone,), (among,) in zip(one["resps"], other["resps"], strict=True):
                near(float(among[0]), float(alone[0]), 0.01, "the score among others")


if __name__ == "__main__":
    main("lm_eval")
