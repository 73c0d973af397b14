"""What pip installs beside Ray though it declares versions that Ray can't have: the extras ``procgen`` and ``imitation``.

uv takes the overrides of pyproject.toml, and pip has none: their packages go in without what they declare, then what they need.
"""

PROCGEN = (
    "pip install --no-deps procgen-mirror==0.10.7 gym3==0.3.3 && "
    "pip install 'gym<1' filelock 'cffi>=2' imageio 'glfw>=2' 'moderngl<6' imageio-ffmpeg"
)
IMITATION = (
    "pip install --no-deps imitation==1.0.1 && "
    "pip install 'stable-baselines3>=2.7,<3' seals==0.2.1 sacred 'huggingface-sb3<4' datasets "
    "optuna tensorboard tqdm 'setuptools<81'"
)
