"""Teachers and the texts that they label, for second versions."""
