"""Execution stages: ways to spend less on a batch, plugged in between its layers, under one planner.

`base` has the interface of a stage, and `planner` chooses the next batch and its settings.
docs/design/0007-rooms.md shows how to write a stage.
"""
