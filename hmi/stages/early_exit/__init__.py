"""Early exits (Apparate, SOSP '24): an execution stage that lets a text leave between layers with its answer.

`stage` is the stage, `hook` its work on one batch, `states` and `state` keep what is known of each model. The
mathematics needs neither torch nor the engine: `rule` decides whether a text leaves, `thresholds` tunes how
sure it must be, `ramps` chooses the places to leave from, `evidence` decides whether anything may
leave at all, and `control` leads one model through all of this.
docs/design/0012-exits-and-cascades.md has the reasons.
"""
