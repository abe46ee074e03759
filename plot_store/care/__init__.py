"""Checking, collecting, compacting and copying whole stores."""
