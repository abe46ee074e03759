"""Runs jobs, whatever they do: processes of their own, folders, progress, cancellation, and
what crashes leave."""
