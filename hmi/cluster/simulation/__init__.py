"""A discrete-event simulation of servers that share a bucket.

`parameters.py` says what goes in and `outcome.py` what comes out. `run.py` has `simulate`. A replica is a
server. Calls are routed by `hmi.api.nodes.ring`, as the servers do, so no model of their choices is needed.
"""
