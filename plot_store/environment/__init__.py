"""What all stores of one path share in a process, and the pins and leases that keep versions."""
