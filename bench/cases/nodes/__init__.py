"""`bench nodes`: what it costs that servers share a bucket, and what happens when the primary dies."""
