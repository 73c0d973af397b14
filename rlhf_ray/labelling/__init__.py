"""The page at which people compare clips, and what stands behind it. Nothing here knows Ray."""
