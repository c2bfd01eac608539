#!/bin/sh
# Create .venv and install PyTorch, eqprop and the development tools. `make setup` runs this script.
# It does nothing if a previous run finished and neither the requirements nor this script changed.
#
#   PYTHON       interpreter to use (default: python3, or the newest of python3.14 to python3.11)
#   TORCH        exact build of PyTorch to install, such as 2.13.0: the default build, with CUDA
#   TORCH_INDEX  package index to ask for the CPU build after the configured one (default: PyTorch's)
set -u
cd "$(dirname "$0")/.." || exit 1

version=$(sed -n 's/^torch==//p' constraints.txt)
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
state=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
log=.venv/setup.log

say() { echo "setup: $*"; }

fail() {
    echo "setup: error: $*" >&2
    exit 1
}

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

version_of() { "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null; }

has_the_python_asked_for() {
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of .venv/bin/python)" ]
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        supported "$candidate" && echo "$candidate" && return
    done
}

finished() {
    [ -x .venv/bin/python ] && [ "$(sed -n 1p .venv/.done 2>/dev/null)" = "$state" ] &&
        { [ -z "${TORCH:-}" ] || [ "$(sed -n 2p .venv/.done)" = "$TORCH" ]; } &&
        has_the_python_asked_for
}

# uv does not read pip's configuration. Where only pip knows which index to use, uv would ask another.
only_pip_is_configured() {
    "$python" -m pip config list 2>/dev/null |
        grep -Eq '[.](index-url|extra-index-url|find-links|no-index)=' &&
        ! env | grep -Eq '^UV_[A-Z_]*(INDEX|FIND_LINKS|CONFIG_FILE)' &&
        ! grep -Eqs 'index|find-links' /etc/uv/uv.toml "${XDG_CONFIG_HOME:-$HOME/.config}/uv/uv.toml"
}

usable_environment() { supported .venv/bin/python && has_the_python_asked_for; }

create_environment() {
    if [ "$tool" = uv ]; then
        usable_environment || UV_VENV_CLEAR=1 uv venv -q --python "$python" .venv
    else
        { usable_environment && .venv/bin/python -m pip --version; } >/dev/null 2>&1 ||
            "$python" -m venv --clear .venv >/dev/null ||
            fail "$python cannot create .venv: on Debian and Ubuntu, apt install python3-venv"
    fi
}

install() {
    if [ "$tool" = uv ]; then
        said=$(uv pip install -q --compile-bytecode --python .venv/bin/python "$@" 2>&1)
    else
        said=$(.venv/bin/python -m pip install -q --disable-pip-version-check "$@" 2>&1)
    fi
    code=$?
    echo "$tool install $*: exit status $code
$said" >>"$log"
    return $code
}

installed_torch() {
    .venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null
}

# PyTorch's default build for Linux brings gigabytes of GPU libraries, so the CPU build comes first.
install_torch() {
    present=$(installed_torch)
    if [ -n "${TORCH:-}" ]; then
        [ "$present" = "$TORCH" ] && return
        say "installing PyTorch $TORCH"
        install --no-deps --force-reinstall "torch===$TORCH" # == would accept a local version
        return
    fi
    [ "${present%+*}" = "$version" ] && return
    if [ "$(uname)" != Darwin ]; then
        say "installing PyTorch $version: the CPU build, from the configured package index"
        install --no-deps "torch==$version+cpu" && return
        say "not found; trying the CPU build from PyTorch's own index, $torch_index"
        install --no-deps --extra-index-url "$torch_index" "torch==$version+cpu" && return
        say "not found; trying the default build, which brings several gigabytes of GPU libraries"
    else
        say "installing PyTorch $version"
    fi
    install --no-deps "torch==$version"
}

install_all() {
    create_environment && install_torch &&
        say "installing eqprop and its development tools" &&
        install -c constraints.txt -e '.[dev]'
}

finished && exit 0
rm -f .venv/.done
python=$(find_python)
[ -n "$python" ] || fail "eqprop needs Python 3.11 to 3.14, which ${PYTHON:-python3} is not:" \
    "install one, or name one with make setup PYTHON=/path/to/python"
tool=pip
if command -v uv >/dev/null; then
    if only_pip_is_configured; then
        say "using pip, not uv: only pip has a package index configured"
    else
        tool=uv
        say "using uv"
        install_all || { say "uv failed; trying again with pip" && tool=pip; }
    fi
fi
[ "$tool" = uv ] || install_all ||
    fail "$(echo "$said" | grep -i error | tail -n 1). Is this machine online? $log has the details"
printf '%s\n%s\n' "$state" "$(installed_torch)" >.venv/.done
say "done: .venv has Python $(version_of .venv/bin/python) and PyTorch $(installed_torch)"
