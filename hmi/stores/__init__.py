"""Durable state: the registry, artefacts on disk, the layout of the data folder; and the adapter pool."""
