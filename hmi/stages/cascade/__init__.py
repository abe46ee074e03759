"""The mathematics of cascades (Tabi, EuroSys '23): functions over arrays, without engine or torch.

`dispatch` decides which texts go on to the large level, `pruning` which of their words it reads, `ensemble`
combines both levels' answers, and `profiling` chooses the parameters of all three offline.
docs/design/0012-exits-and-cascades.md has the reasons.
"""
