"""What every other room of plot_store stands on: errors, nouns, names, files, checks of arguments."""
