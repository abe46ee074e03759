"""Counting the n-grams of texts. Of plot_store it imports only `ground`."""
