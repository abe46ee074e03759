"""Look-ups in PLOT indexes and rows, on the CPU and on CUDA devices."""
