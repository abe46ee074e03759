"""Durable state: the registry, artefacts on disk, the layout of the data folder. Also the adapter pool in
memory."""
