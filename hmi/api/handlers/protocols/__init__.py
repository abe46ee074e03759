"""The handlers of inference, and of what other servers' protocols ask beside it."""
