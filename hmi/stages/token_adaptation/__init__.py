"""Token adaptation (OTAS, ICDE '24): the stage that merges similar rows of a text to save compute, or adds
trained prompts to spend more. docs/design/0013-token-adaptation.md explains the choices and has figures.
"""
