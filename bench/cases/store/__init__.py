"""`bench store`: the PLOT store beside this machine's limits and other stores, measured in one run."""
