"""The benchmarks. Each case is a folder with its command; `python -m bench CASE` runs it."""
