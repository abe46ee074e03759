"""The store's records, in LMDB: versions, refs, tags and builds."""
