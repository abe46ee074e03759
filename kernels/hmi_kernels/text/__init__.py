"""Kernels over words and paths: the lexical and tagging parts of models."""
