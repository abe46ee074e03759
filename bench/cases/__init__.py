"""What can be measured: a file or a folder a case."""
