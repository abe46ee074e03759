"""`python -m hmi.demo`: real text, fourteen tenants over HTTP, and their scores.

- `wheels`: wheels of text and of a language model from the package index, read as zip files, never imported
- `clean`: cleans the text
- `texts`, `biomedical`: the tasks, in the layout of `folder`, which `--text FOLDER` also reads
- `onboard`, `measure`, `run`: the demo itself
- `baseline`: trains the dedicated copies
"""
