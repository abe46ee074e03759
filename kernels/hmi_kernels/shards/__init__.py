"""Kernels that pack weights to a few bits each, and write packed weights into fp32 matrices."""
