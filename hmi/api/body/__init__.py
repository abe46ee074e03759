"""The body of a request, from its bytes to a checked model and files."""
