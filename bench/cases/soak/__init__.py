"""`bench soak`: a server near its capacity, under all kinds of work and clients at once.

Every answer is checked against the same version's answer to the same text alone.
"""
