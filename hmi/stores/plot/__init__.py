"""The PLOT store as HMI opens it, and the misses that it records."""
