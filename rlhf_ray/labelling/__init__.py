"""The labelling page: people compare clips in a browser."""
