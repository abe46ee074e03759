"""Elastic shards (STI, ASPLOS '23): a root's upper layers in pieces that are read at several bitwidths.

`codec` makes and decodes shards, `store` keeps them beside a root's files, `importance` finds which of them
matter, `plan` chooses what to read in the time that there is, and `simulate` runs such a plan without a disk.
docs/design/0014-elastic-shards.md has the reasons.
"""
