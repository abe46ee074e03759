"""Kernels for the lexical features and the tag paths of models."""
