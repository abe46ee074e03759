"""The planner of all stages: groups of texts with deadlines, costs, and the exact program over both.

docs/design/0015-planner.md tells how its parts work together.
"""
