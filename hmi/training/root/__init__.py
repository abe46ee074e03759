"""Training of a root: locality, pretraining, fidelity."""
