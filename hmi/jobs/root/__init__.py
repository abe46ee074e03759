"""Jobs that make roots."""
