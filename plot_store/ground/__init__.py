"""The base of every other package of plot_store: errors, nouns, names, files, limits, argument checks."""
