"""Which column or field is the text, and which the label; what is wrong with a row."""
