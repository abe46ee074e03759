"""The audit log: JSON lines below `<data>/audit`, appended and chained by hashes, a file for each day.

`lines` has the form of a line, `log` appends, `reading` reads pages, `verifying` checks the chain.
"""
