"""Jobs that profile stages."""
