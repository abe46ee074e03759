"""Jobs, the long operations: each runs in a process of its own, resumes after a crash, and always
reaches an end state."""
