"""Tenants' low-rank changes on packed rows: a kernel over segments of any rank, on a CUDA device."""
