"""What lasts: the registry, artefacts at rest, the layout of the data folder; and the pool of what is in memory."""
