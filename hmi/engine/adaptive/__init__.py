"""What varies how a text is answered: levels of a cascade, the planner, shards."""
