"""The registry's journal in object storage, by which nodes share their registries."""
