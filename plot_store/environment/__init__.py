"""The state that all `Store`s of one path share in a process; pins and leases."""
