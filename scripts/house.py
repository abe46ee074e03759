"""Counts a tree of sources: how large the house is, and how tangled. Reads files only; nothing is imported.

    python scripts/house.py [LABEL=]TREE ... [--json]       a Markdown table with a column for each tree

Lines are non-blank ones of Python files. The product is `hmi`, `plot_store` and `kernels`, without
`hmi/bench`. A closure is every module that runs when a file is imported, without those under
`if TYPE_CHECKING`; `also inside functions` adds what functions import once they run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDERS = ("hmi", "plot_store", "kernels", "bench", "tests", "scripts")
CLOSURES = {
    "the queue": ("hmi/engine/schedule/queue.py", "hmi/engine/queue.py"),
    "the engine": ("hmi/engine/engine.py",),
}
"""Files and where they are, or were in an earlier release."""
SMALL, SHOWN = 150, 10
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """A Python file: its path in the tree, the part of the house that it belongs to, its non-blank lines."""

    path: str
    part: str
    tree: ast.Module
    lines: frozenset[int]

    @property
    def module(self) -> str:
        names = Path(self.path.removeprefix("kernels/")).with_suffix("").parts
        return ".".join(names[:-1] if names[-1] == "__init__" else names)

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    def count(self, nodes: list[ast.AST]) -> int:
        """The non-blank lines that the nodes stand on."""
        spans = (range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in nodes)  # type: ignore[attr-defined]
        return len(self.lines & {line for span in spans for line in span})


def read(root: Path) -> list[File]:
    files = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
            full = frozenset(i for i, line in enumerate(text.splitlines(), 1) if line.strip())
            part = "bench" if name.startswith("hmi/bench/") else folder
            files.append(File(name, part, ast.parse(text), full))
    return files


def imports(file: File, known: dict[str, File], deep: bool) -> set[str]:
    """The modules of `known` that the file imports, each with the packages around it."""
    found = set()
    for node in _statements(file.tree, deep):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = file.module.split(".")
                around = around[: len(around) - node.level + file.is_package]
                base = ".".join([*around, *([base] if base else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = (name.split(".") for name in found)
    whole = {".".join(names[:i]) for names in parts for i in range(1, len(names) + 1)}
    return whole & known.keys()


def _statements(node: ast.AST, deep: bool) -> Iterator[ast.AST]:
    """The statements below `node` that run when it does; with `deep`, those of functions, too."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *_statements(other, deep))
        elif deep or not isinstance(child, Function | ast.Lambda):
            yield from _statements(child, deep)


def closure(paths: tuple[str, ...], known: dict[str, File], deep: bool) -> list[File]:
    """The first of these files that there is, and all that its import runs; empty if there is none."""
    modules = {file.path: name for name, file in known.items()}
    waiting = [modules[path] for path in paths if path in modules][:1]
    found: dict[str, File] = {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = known[name]
            parents = {name.rsplit(".", i)[0] for i in range(1, name.count(".") + 1)}
            waiting += (imports(known[name], known, deep) | parents) & known.keys()
    return list(found.values())


def figures(root: Path) -> dict[str, Any]:
    """Every figure by its name, in the order of the table."""
    files = read(root)
    product = [f for f in files if f.part in ("hmi", "plot_store", "kernels")]
    known = {f.module: f for f in files if f.part not in ("tests", "scripts")}
    found: dict[str, Any] = {}
    for part in FOLDERS:
        own = [f for f in files if f.part == part]
        found[f"{part}: lines / files"] = f"{sum(len(f.lines) for f in own):,} / {len(own)}"
    found["product: lines / files"] = f"{sum(len(f.lines) for f in product):,} / {len(product)}"
    folders = Counter(f.path.rpartition("/")[0] for f in files)
    found["folders with most files"] = _listed(folders.most_common(5))
    for of, paths in CLOSURES.items():
        for deep, name in ((False, ""), (True, ", also inside functions")):
            each = closure(paths, known, deep)
            found[f"closure of {of}{name}: lines / files"] = (
                f"{sum(len(f.lines) for f in each):,} / {len(each)}"
            )
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    for file in known.values():
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                meanings[node.name].add(file.module)
    several = Counter({name: len(where) for name, where in meanings.items() if len(where) > 1})
    found["class names of several modules"] = len(several)
    top = sorted(several.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
    found["those of most modules"] = _listed(top)
    glossary = root / "docs/glossary.md"
    text = glossary.read_text(encoding="utf-8") if glossary.is_file() else ""
    found["terms of the glossary"] = len(re.findall(r"^\| \*\*", text, re.MULTILINE))
    return found | _contents(product, known)


def _contents(product: list[File], known: dict[str, File]) -> dict[str, Any]:
    """What the product's lines are, and which of its files and functions stand out."""
    docs = imported = 0
    functions: list[tuple[int, str]] = []
    importers: Counter[str] = Counter()
    for file in product:
        nodes = list(ast.walk(file.tree))
        docs += file.count([n for n in nodes if _is_text(n)])
        imported += file.count([n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)])
        functions += [(file.count([n]), f"{file.path} {n.name}") for n in nodes if isinstance(n, Function)]
    for file in known.values():
        importers.update(imports(file, known, deep=True) - {file.module})
    total = sum(len(f.lines) for f in product) or 1
    single = [f for f in product if importers[f.module] == 1 and len(f.lines) <= SMALL and not f.is_package]
    longest = max(product, key=lambda f: len(f.lines))
    lines, name = max(functions, default=(0, "none"))
    return {
        "docstrings, share of the product's lines": f"{docs / total:.1%}",
        "imports, share of the product's lines": f"{imported / total:.1%}",
        "longest function": f"{lines} ({name})",
        "longest file": f"{len(longest.lines)} ({longest.path})",
        f"files of at most {SMALL} lines with one importer": len(single),
    }


def _is_text(node: ast.AST) -> bool:
    """A docstring, of a module, class, function or attribute."""
    text = node.value if isinstance(node, ast.Expr) else None
    return isinstance(text, ast.Constant) and isinstance(text.value, str)


def _listed(counts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)


def table(columns: dict[str, dict[str, Any]]) -> str:
    """A Markdown table: a row for each figure, a column for each tree."""
    names = list(dict.fromkeys(name for found in columns.values() for name in found))
    lines = [f"| figure | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | {' | '.join(str(found.get(name, '')) for found in columns.values())} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="+", metavar="[LABEL=]TREE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    split = [text.rpartition("=") for text in given.trees]
    columns = {label or path: figures(Path(path)) for label, _, path in split}
    if given.json:
        json.dump(columns, sys.stdout, indent=1)
    else:
        print(table(columns))


if __name__ == "__main__":
    main()
