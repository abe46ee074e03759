"""Tensors on the disk and in memory."""
