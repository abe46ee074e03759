"""What annotation tools write: exports, spans, chats, decisions."""
