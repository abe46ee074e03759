"""The commands of `bench`."""
