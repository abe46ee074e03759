"""Commands about this installation and this machine."""
