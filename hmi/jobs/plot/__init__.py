"""Jobs that make PLOTs."""
