# Sourced by scripts/demo and scripts/test: a Python with rtb installed, in $PYTHON.
# Uses the virtual environment that is active; makes .venv in the repository when none is.
# Set RTB_EXTRAS to the extras to install.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -n "${VIRTUAL_ENV:-}" ]; then
    PYTHON="$VIRTUAL_ENV/bin/python"
else
    base=""
    for candidate in python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            base=$candidate
            break
        fi
    done
    if [ -z "$base" ]; then
        echo "rtb needs Python 3.11 or newer with the venv module: install it and run this again" >&2
        exit 1
    fi
    [ -x "$root/.venv/bin/python" ] || "$base" -m venv "$root/.venv"
    PYTHON="$root/.venv/bin/python"
fi
if ! command -v git >/dev/null 2>&1; then
    echo "rtb needs git: install it and run this again" >&2
    exit 1
fi

# uv takes seconds where pip takes minutes. It does not read pip's settings: an index of one's own is handed on.
install_rtb() {
    local what="$root${RTB_EXTRAS:+[$RTB_EXTRAS]}" index
    index=${PIP_INDEX_URL:-$("$PYTHON" -m pip config get global.index-url 2>/dev/null || true)}
    if "$PYTHON" -m pip install --quiet --disable-pip-version-check uv >/dev/null 2>&1 &&
        "$PYTHON" -m uv pip install --quiet --python "$PYTHON" ${index:+--default-index "$index"} -e "$what"; then
        return
    fi
    echo "uv could not do it; with pip this takes minutes ..." >&2
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -e "$what"
}

want="$(cat "$root/pyproject.toml" "$root/scripts/venv.sh") ${RTB_EXTRAS:-}"
stamp="$(dirname "$PYTHON")/../.rtb-installed"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    echo "installing rtb into $(dirname "$(dirname "$PYTHON")") ..." >&2
    install_rtb
    printf '%s' "$want" >"$stamp"
fi
export PYTHON

# The CPU base image: the one that is here, else pulled, else made without a registry.
need_base_image() {
    docker image inspect rtb/base:cpu >/dev/null 2>&1 && return
    docker image inspect python:3.11-slim-bookworm >/dev/null 2>&1 && return
    docker pull --quiet python:3.11-slim-bookworm >/dev/null 2>&1 && return
    "$root/scripts/make-base-image"
}
