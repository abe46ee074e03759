"""The handlers, one file for each noun. A handler checks the caller, calls the manager and converts the
result."""
