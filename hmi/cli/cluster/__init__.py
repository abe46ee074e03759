"""The commands about many servers as one."""
