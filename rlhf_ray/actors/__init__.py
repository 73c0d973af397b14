"""The ring's actors: one file each, a plain class that Ray runs in its own process. `ring` connects them."""
