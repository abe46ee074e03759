"""The synchronous client. All its files but `io.py` are made by `scripts/sync_client.py`."""
