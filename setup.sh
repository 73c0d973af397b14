#!/usr/bin/env bash
# Make the environment .venv, or bring it up to date. Quick when there is nothing to do.
# Settings: PYTHON (default: .venv's own, or the first of python3.11 to python3.14 found), EXTRAS (default: dev).
set -euo pipefail
cd "$(dirname "$0")"

extras=${EXTRAS:-dev}
stamp=.venv/.installed
wanted=$(cat pyproject.toml constraints.txt setup.sh 2>/dev/null | cksum; echo "$extras"; pwd)
minor() { "$1" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null || true; }
same_python() { [ -z "${PYTHON:-}" ] || [ "$(minor .venv/bin/python)" = "$(minor "$PYTHON")" ]; }
if [ -x .venv/bin/rlhf-ray ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && same_python; then
  exit 0
fi

usable() { "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 15)))' >/dev/null 2>&1; }
python=${PYTHON:-}
if [ -n "$python" ]; then
  if ! usable "$python"; then
    echo "setup: PYTHON=$python is $("$python" --version 2>&1 || true); rlhf_ray needs Python 3.11 to 3.14." >&2
    echo "setup: set PYTHON to one of them, for example: make setup PYTHON=python3.11" >&2
    exit 1
  fi
else
  for candidate in .venv/bin/python python3.11 python3.12 python3.13 python3.14 python3 python; do
    if usable "$candidate"; then python=$candidate; break; fi
  done
  if [ -z "$python" ]; then
    echo "setup: no Python 3.11 to 3.14 found (python3 is $(python3 --version 2>&1 || echo absent))." >&2
    echo "setup: install one and run again, or name it: make setup PYTHON=/path/to/python3.11" >&2
    exit 1
  fi
fi

echo "setup: making .venv with $("$python" --version); the first time this downloads about 650 MB with a CPU build of torch"
if [ -d .venv ] && [ "$(minor .venv/bin/python)" != "$(minor "$python")" ]; then rm -rf .venv; fi
[ -d .venv ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.5"

# uv does not read pip's settings. Where they offer local wheels (a CPU build of torch, say), hand them over.
if [ -z "${UV_FIND_LINKS:-}" ]; then
  links=${PIP_FIND_LINKS:-$(.venv/bin/python -m pip config list 2>/dev/null | sed -n "s/^[^=]*find-links='\(.*\)'$/\1/p" | head -n 1)}
  if [ -n "$links" ]; then export UV_FIND_LINKS=$links; fi
fi
constraints=()
if [ -f constraints.txt ]; then constraints=(-c constraints.txt); fi
# Compiled now rather than at the first start, for which Ray gives its processes 30 s.
.venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python "${constraints[@]}" -e ".[$extras]"
echo "$wanted" >"$stamp"
echo "setup: done"
