"""What commands share: options, the session, output, progress."""
