"""`python -m rlhf_ray`: the command line, as `rlhf-ray`."""

from rlhf_ray.cli import main

main()
