"""The transformer: layers and their arithmetic."""
