#!/usr/bin/env python3
"""Measures how well the embeddings of models rank pairs of sentences by relatedness.

    python similarity.py --text articles.txt --model dense.gguf --model pruned.gguf

The pairs come from a text of articles, a paragraph per line and titles as ` = Title = `, of which the last part that
--held-out names is used; distill.py shall not have seen it (--train-out writes the rest, a sentence per line). A pair has
one of five grades by how it was made: 4, a sentence and itself without a tenth of its words; 3, without half of them;
2, two neighbours of one paragraph; 1, two sentences of one article, of different paragraphs; 0, of different articles.
Printed is Spearman's rank correlation of cosine and grade, times 100, and with the first model's cosines. Vectors are
computed by `bilayer embed`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def articles(text):
    """Lists of paragraphs, each a list of sentences of 6 to 40 words."""
    found = []
    for line in text.splitlines():
        line = line.strip()
        if re.fullmatch(r"= [^=].*[^=] =", line):
            found.append([])
        elif line and not line.startswith("=") and found:
            sentences = [s.strip() for s in re.split(r"(?<=[.!?]) +(?=[A-Z\"])", line)]
            sentences = [s for s in sentences if 6 <= len(s.split()) <= 40]
            if sentences:
                found[-1].append(sentences)
    return [article for article in found if article]


def without(sentence, share, rng):
    words = sentence.split()
    kept = rng.random(len(words)) >= share
    return " ".join(w for w, k in zip(words, kept) if k) or words[0]


def pairs(articles, count, rng):
    """`count` pairs of each grade: (grade, sentence, sentence)."""
    def of(things):
        return things[rng.integers(len(things))]

    several = [a for a in articles if len(a) > 1]
    long = [p for a in articles for p in a if len(p) > 1]
    if len(articles) < 2 or not several or not long:
        sys.exit("--text needs two articles with several paragraphs of several sentences in the part that is held out")
    made = []
    for _ in range(count):
        for grade, share in ((4, 0.1), (3, 0.5)):
            sentence = of(of(of(articles)))
            made.append((grade, sentence, without(sentence, share, rng)))
        paragraph = of(long)
        at = rng.integers(len(paragraph) - 1)
        made.append((2, paragraph[at], paragraph[at + 1]))
        article = of(several)
        first, second = rng.choice(len(article), 2, replace=False)
        made.append((1, of(article[first]), of(article[second])))
        first, second = rng.choice(len(articles), 2, replace=False)
        made.append((0, of(of(articles[first])), of(of(articles[second]))))
    return made


def ranks(values):
    """Ranks from 0, ties at their mean."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values))
    values = np.asarray(values)
    for value in np.unique(values):
        at = values == value
        found[at] = found[at].mean()
    return found


def spearman(a, b):
    return 100 * np.corrcoef(ranks(a), ranks(b))[0, 1]


def embed(bilayer, model, sentences):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as lines:
        lines.write("\n".join(sentences))
        lines.flush()
        command = [bilayer, "embed", "-m", model, "-f", lines.name, "--truncate"]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    vectors = [json.loads(line)["embedding"] for line in out.splitlines() if line.strip()]
    if len(vectors) != len(sentences):
        sys.exit(f"{model}: {len(vectors)} vectors for {len(sentences)} sentences")
    vectors = np.array(vectors, dtype=np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--text", type=Path, required=True, help="UTF-8 text of articles")
    p.add_argument("--model", action="append", default=[], help="GGUF file of an encoder; may be repeated")
    p.add_argument("--bilayer", default="bilayer", help="the bilayer binary")
    p.add_argument("--pairs", type=int, default=200, help="pairs of each grade [200]")
    p.add_argument("--held-out", type=float, default=0.25, help="part of the articles, the last ones, for pairs [0.25]")
    p.add_argument("--train-out", type=Path, help="write the sentences of the other articles to this file")
    p.add_argument("--seed", type=int, default=1, help="seed of all random numbers [1]")
    a = p.parse_args()
    found = articles(a.text.read_text(encoding="utf-8"))
    cut = len(found) - max(2, round(len(found) * a.held_out))
    if cut < 1:
        sys.exit(f"--text has {len(found)} articles; give one with more")
    if a.train_out:
        sentences = [s for article in found[:cut] for paragraph in article for s in paragraph]
        a.train_out.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        print(f"{len(sentences)} sentences of {cut} articles to train on", file=sys.stderr)
    made = pairs(found[cut:], a.pairs, np.random.default_rng(a.seed))
    grades, first = [grade for grade, _, _ in made], None
    for model in a.model:
        left, right = (embed(a.bilayer, model, [pair[side] for pair in made]) for side in (1, 2))
        cosines = (left * right).sum(1)
        first = cosines if first is None else first
        print(f"{model}: {spearman(cosines, grades):.2f} with the grades, {spearman(cosines, first):.2f} with the first model")


if __name__ == "__main__":
    main()
