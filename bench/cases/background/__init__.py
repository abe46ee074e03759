"""`bench background`: how much a background job slows the answers of a server."""
