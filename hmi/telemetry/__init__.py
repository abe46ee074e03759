"""What a server tells its operator beside metrics: log lines and spans, with their request."""
