"""Elastic shards (STI, ASPLOS '23): a root's upper layers in pieces that are read at several bitwidths.

`codec` makes and decodes shards, `making` and `store` keep them beside a root's files, `pipeline` reads them
for batches, `weights` makes layers of them, and `fidelity` keeps how often models answer as in full.
docs/design/0014-elastic-shards.md has the reasons.
"""
