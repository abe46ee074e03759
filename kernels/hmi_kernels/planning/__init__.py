"""Kernels of the planner."""
