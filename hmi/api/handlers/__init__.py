"""The calls, one file for each noun. A handler reads as: who may, ask the manager, show the answer."""
