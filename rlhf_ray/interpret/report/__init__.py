"""What the reports about rewards and agents share: finished sections on disk, statements, the page."""
