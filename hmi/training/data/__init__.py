"""Reading what users upload: labelled rows, texts without answers, corpora. Nothing here imports torch."""
