"""What a run came to, for people to read: its report, and what may be said of its numbers."""
