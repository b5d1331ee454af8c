# Shared by the scripts: finding and installing the Debian packages, configuring, building. To be sourced by bash.
# Everything here reports to standard error, so that a script's standard output belongs to the program it runs.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
release_dir=$root/build/release

build_packages=(g++ cmake ninja-build pkg-config libexpected-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libpcre2-dev libutf8proc-dev libssl-dev libedit-dev liburing-dev libboost-dev prometheus-cpp-dev)
test_packages=(libgtest-dev)

say() { printf '==> %s\n' "$*" >&2; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Prints those of the named packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      printf '%s\n' "$package"
    fi
  done
}

# Runs a command as root: directly, or through sudo.
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root and no sudo; run as root: $*"
  fi
}

# Installs those of the named packages that are missing. Does nothing, not even a look at the network, when none is.
install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "No apt on this machine. Install the equivalents of these Debian packages:"
    printf '      %s\n' "$@" >&2
    command -v cmake >/dev/null && command -v ninja >/dev/null || die "cmake and ninja are needed to go on"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "Installing ${#missing[@]} missing packages: ${missing[*]}"
  as_root apt-get update -q >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
}

# configure_release [CMAKE-OPTION...]
configure_release() {
  cmake --preset release -S "$root" "$@" >&2
}

# build_release [TARGET...]: all targets when none is named.
build_release() {
  local targets=()
  [[ $# -eq 0 ]] || targets=(--target "$@")
  say "Building in ${release_dir#"$PWD"/}"
  cmake --build "$release_dir" --parallel "$(nproc)" "${targets[@]}" >&2
}
