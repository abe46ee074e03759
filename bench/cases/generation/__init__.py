"""Writing with a language model's root, beside llama.cpp."""
