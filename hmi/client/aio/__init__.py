"""The asynchronous client. `scripts/sync_client.py` makes `hmi.client.sync` of all its files but `io.py`."""
