"""The handlers, one file for each noun. A handler checks the caller, asks the manager and shapes the
answer."""
