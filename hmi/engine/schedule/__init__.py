"""The queue: which texts run next, and in how large a batch."""
