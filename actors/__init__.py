"""The ring's actors: one file each, a plain class that Ray runs in a process of its own. `ring` joins them."""
