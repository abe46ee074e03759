"""What the cases share: rows of figures, data folders, servers, loads."""
