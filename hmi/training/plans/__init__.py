"""How a model is trained: the recipe, its defaults, the plan for its rows."""
