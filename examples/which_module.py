"""Which module of Python's standard library is a sentence about? A language model of each module says.

All of them are in one PLOT store: an n-gram's vector has a number for each module, the log probability of its
last word after the words before it, in the docstrings of that module. A look-up returns, for each word of a
sentence, the vector of the longest n-gram that is stored. Their sum says which module most likely wrote it.

    pip install hmi-plot-store
    python examples/which_module.py
"""

import ast
import re
import sysconfig
import tempfile
from collections import defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from plot_store import MissSketch, NgramCounter, Schema, Store

MODULES = [
    "argparse", "asyncio", "difflib", "doctest", "email", "http", "importlib", "inspect", "ipaddress",
    "json", "logging", "multiprocessing", "pathlib", "statistics", "tarfile", "threading", "tkinter",
    "turtle", "typing", "unittest", "urllib", "xml",
]  # fmt: skip
N = 3  # n-grams of up to three words
WEIGHT = 8.0  # what an n-gram's counts are worth beside those of the n-gram without its first word

# Text: the sentences of the docstrings, each once.
text: dict[str, str] = {}
library = Path(sysconfig.get_path("stdlib"))
for module in MODULES:
    for file in sorted([*library.glob(f"{module}.py"), *library.glob(f"{module}/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in re.split(r"[.:;?!]\s|\n\s*\n", ast.get_docstring(node) or ""):
                    words = re.findall("[a-z]+", sentence.lower())
                    if len(words) > 4:
                        text.setdefault(" ".join(words), module)
ids = {word: number for number, word in enumerate(sorted(set(" ".join(text).split())), 1)}  # 0 is no word
sentences = [tuple(ids[word] for word in sentence.split()) for sentence in text]
labels = np.array([MODULES.index(module) for module in text.values()])
shuffled = np.random.default_rng(0).permutation(len(labels))
known, later, held_out = np.split(shuffled, [len(labels) // 2, len(labels) * 3 // 4])


def batch(chosen):
    """Sentences one after the other: int32 [tokens], and where each begins: int64 [sentences + 1]."""
    texts = [sentences[i] for i in chosen]
    return np.array([*chain(*texts)], np.int32), np.cumsum([0, *map(len, texts)])


# The model: how often each n-gram comes in each module.
counts = defaultdict(lambda: np.zeros(len(MODULES)))


def learn(chosen):
    probabilities.cache_clear()
    for i in chosen:
        for end in range(len(sentences[i])):
            for start in range(max(end - N + 1, 0), end + 2):  # the last is empty: all words of a module
                counts[sentences[i][start : end + 1]][labels[i]] += 1


@cache
def probabilities(ngram):
    """Return the probability of an n-gram's last word after its others, in each module: float64 [modules]."""
    if not ngram:
        return np.full(len(MODULES), 1 / len(ids))
    shorter = probabilities(ngram[1:])
    return (counts[ngram] + WEIGHT * shorter) / (counts[ngram[:-1]] + WEIGHT)


def rows(ngrams):
    """Return the rows to store: float32 [n-grams, 1, modules]."""
    return np.log([[probabilities(tuple(ngram))] for ngram in ngrams.tolist()]).astype(np.float32)


def report(store, what):
    """Find the modules of the sentences held out, print how many were right, and return the vectors."""
    tokens, offsets = batch(held_out)
    with store.reader("modules") as reader:
        vectors, hits = reader.lookup(tokens, offsets)
        version = reader.version
    right = np.mean(np.add.reduceat(vectors, offsets[:-1]).argmax(1) == labels[held_out])
    used = ", ".join(f"{order} {count:,}" for order, count in hits.counts().items())
    print(f"{what:32}{right:6.1%} right{version.bytes / 1e6:6.1f} MB   {used}")
    return vectors


def main(folder):
    print(f"{len(held_out):,} of {len(labels):,} sentences are held out; {len(MODULES)} modules")
    learn(known)
    schema = Schema(n=N, dim=len(MODULES), vocab=len(ids) + 1, window="causal")
    with NgramCounter(N, (1, 2, 3), folder / "counts", window="causal") as counter:
        counter.add(*batch(known))
        counted = counter.finish()
    store = Store.open(folder / "plots", create=True)

    # Build: every word. Nobody sees the version before `publish`, and then all of it, also after a crash.
    with store.writer("modules", schema=schema, build="words") as writer:
        for ngrams in counted.covering(1, alpha=100):
            writer.add(1, ngrams, rows(ngrams))
        writer.publish()
    report(store, "words")

    # Grow: a version that adds the n-grams of two and three words.
    with store.writer("modules", schema=schema, build="longer", extend=True) as writer:
        for order in (2, 3):
            for ngrams in counted.covering(order, alpha=100):
                writer.add(order, ngrams, rows(ngrams))
        writer.publish()
    report(store, "and two and three words")

    # Learn from use: later sentences come, and somebody names their modules. Add what they missed.
    tokens, offsets = batch(later)
    misses = MissSketch(N, window="causal")
    with store.reader("modules") as reader:
        _, hits = reader.lookup(tokens, offsets)
    misses.add(tokens, offsets, hits)
    missed, _, _ = misses.top(min_count=1)
    unknown = np.unique(tokens[hits.order == 0]).astype(np.uint32)[:, None]
    learn(later)
    good = store.append("modules", {1: (unknown, rows(unknown)), 3: (missed, rows(missed))})
    store.tag("modules", "good", good.id)
    before = report(store, "and what later sentences missed")

    # Go back: a publication with a mistake, which a rollback undoes at once.
    known_words = np.concatenate([*counted.covering(1, alpha=100)])
    store.append("modules", {1: (known_words, -rows(known_words))})
    report(store, "a mistake: a wrong sign")
    store.rollback("modules", "modules@good")
    report(store, "rolled back")

    # Move: a second machine pulls what the first one pushed, and answers with the same bits.
    store.push("modules", folder / "remote")
    with Store.open(folder / "second", create=True) as second:
        second.pull("modules", folder / "remote")
        assert np.array_equal(report(second, "a second store, which pulled it"), before)
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
