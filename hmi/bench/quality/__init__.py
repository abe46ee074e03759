"""What a tenant's model is worth beside a model of its own, on labelled data that a user names.

So far: the tasks, the runs of each cell, the ledger that keeps them and the table made of it. The command comes with
the tables.
"""
