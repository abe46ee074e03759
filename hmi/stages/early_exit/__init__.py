"""The mathematics of early exits (Apparate, SOSP '24): functions over arrays, without engine or torch.

`rule` decides whether a text leaves, `thresholds` tunes how sure it must be, `ramps` chooses the places to
leave from, `evidence` and `drift` decide whether anything may leave at all.
docs/design/0012-exits-and-cascades.md has the reasons.
"""
