"""Long operations: each job runs in a process of its own, resumes after a crash, and always reaches
an end state."""
