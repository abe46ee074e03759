"""Encoder layers over the packed rows of many texts, with a low-rank module of each text's own, on one CPU
thread.

`ops` is the face. `tile` is the innermost product, `product` a matrix's, `rowwise` what happens to single
rows, `attention` one text's attention, `change` the modules, `layer` the whole; `pack` makes the layouts that
they read.
"""
