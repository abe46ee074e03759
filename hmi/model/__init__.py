"""The models in plain torch: roots (loading, splitting, locality), shared upper layers,
tenant modules, heads."""
