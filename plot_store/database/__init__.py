"""LMDB, opened with checks: the only room that imports lmdb."""
