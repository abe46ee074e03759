"""Makes `hmi/client/sync` of `hmi/client/aio`: the same client without `async` and `await`.

python scripts/sync_client.py            writes the files
python scripts/sync_client.py --check    only compares them
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "hmi" / "client"
OWN = ("__init__.py", "io.py")
"""Files that each side has of its own."""
HEADER = "# Made by scripts/sync_client.py of hmi/client/aio/{name}: change that file.\n"
WORDS = (
    (r"\bawait ", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\basync for\b", "for"),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\ba(close|closing|read|iter_bytes)\b", r"\1"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bhmi\.client\.aio\b", "hmi.client.sync"),
    (r"\basynchronous\b", "synchronous"),
)


def translated(text: str, name: str) -> str:
    """Return the synchronous form of a file."""
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    path = f"hmi/client/sync/{name}"
    # C416 and UP028: loops that need `async for` on one side are a list or `yield from` on the other.
    fixes = ["check", "--fix", "--unsafe-fixes", "--select", "I,C416,UP028", "--quiet"]
    for step in (fixes, ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *step, "--stdin-filename", path, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=CLIENT.parents[1],
        )
        text = done.stdout
    return HEADER.format(name=name) + text


def made() -> dict[Path, str]:
    """Return the text of each file of the synchronous client."""
    sources = sorted((CLIENT / "aio").glob("*.py"))
    return {
        CLIENT / "sync" / source.name: translated(source.read_text(encoding="utf-8"), source.name)
        for source in sources
        if source.name not in OWN
    }


def stale() -> list[Path]:
    """Return the files that are not what this script would write."""
    return [path for path, text in made().items() if not path.exists() or path.read_text() != text]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(map(str, found))}" if (found := stale()) else 0)
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
