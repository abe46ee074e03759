"""The number of connections that a server may have."""

from __future__ import annotations

import resource

from hmi.config import Settings
from hmi.errors import InvalidInput

MOST_CONNECTIONS = 4096
"""The default limit on connections is at most this."""
LEAST_CONNECTIONS = 16
"""The default limit on connections is at least this."""
KEPT_FILES = 64
"""File descriptors that `max_connections` must leave to the rest of the process."""


def most_connections(settings: Settings) -> int:
    """The limit on connections. Raises InvalidInput if it exceeds the files that the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not settings.max_connections:
        return min(max(files // 2, LEAST_CONNECTIONS), MOST_CONNECTIONS)
    if settings.max_connections > files - KEPT_FILES:
        raise InvalidInput(
            f"max_connections = {settings.max_connections} needs more than the {files} files that this "
            f"process may open: raise the limit (ulimit -n), or give at most {files - KEPT_FILES}",
            field="max_connections",
        )
    return settings.max_connections
