"""Commands about many servers that share a bucket."""
