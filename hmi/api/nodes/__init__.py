"""One server among those that share a bucket."""
