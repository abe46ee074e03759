"""The benchmark of the execution stages and of the planner that chooses among their settings."""
