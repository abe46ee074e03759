"""Texts as tokens: tokenizer, pieces, windows, lexical features."""
