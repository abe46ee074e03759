"""What is a tenant's own: module, head, calibration, novelty."""
