"""Comparing tenants' models with dedicated copies, on labelled data that the user gives."""
