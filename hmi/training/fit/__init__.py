"""The training loop and what it trains."""
