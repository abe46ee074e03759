"""Tests of hmi/cluster."""
