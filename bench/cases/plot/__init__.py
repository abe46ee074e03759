"""`bench plot`: builds PLOTs of a real corpus with the server's jobs, then looks up held-out text."""
