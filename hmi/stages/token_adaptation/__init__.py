"""Token adaptation (OTAS): texts lose rows under load, which are merged, and may get prompts otherwise."""
