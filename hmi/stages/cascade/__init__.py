"""Cascades (Tabi, EuroSys '23): a small model answers first, and a large one the texts that need it.

The mathematics needs neither torch nor the engine: `dispatch` decides which texts go on to the large level,
`pruning` which of their words it reads, `ensemble` combines both levels' answers, `profiling` chooses the
parameters of all three offline, and `gate` decides from audits whether a cascade may be used. `stage` and
`hook` are the execution stage for a cascade inside one root; `hmi.engine.adaptive.levels` runs cascades
between two roots.
docs/design/0012-exits-and-cascades.md has the reasons.
"""
