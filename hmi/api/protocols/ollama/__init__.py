"""Ollama's calls that let models write. See docs/protocols.md."""
