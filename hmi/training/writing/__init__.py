"""What a tenant of a language model learns from prompts and completions."""
