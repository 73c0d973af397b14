import examples.worlds  # noqa: F401 - registers MiniRun, CueRun and their like
