"""LMDB, opened with checks. Only this package imports lmdb."""
