#!/usr/bin/env bash
# Installs what is missing of the packages in config/packages.txt: install.sh [GROUP...], by default
# the group "build". Does nothing, and says so, when everything is there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
groups=("${@:-build}")

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install.sh: this is no Debian; install what stands in $here/packages.txt by other means" >&2
  exit 1
fi

wanted=()
for group in "${groups[@]}"; do
  mapfile -t found < <(awk -v group="[$group]" \
    '/^\[/ { inside = ($0 == group); next } inside && NF && !/^#/ { print $1 }' "$here/packages.txt")
  if [ "${#found[@]}" -eq 0 ]; then
    echo "install.sh: no group \"$group\" in $here/packages.txt" >&2
    exit 2
  fi
  wanted+=("${found[@]}")
done

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -eq 0 ]; then
  echo "== packages: all ${#wanted[@]} of ${groups[*]} are installed"
  exit 0
fi

echo "== packages: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: run it as root, or: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
# "${as_root[@]+...}": an empty array counts as unset in old shells.
${as_root[@]+"${as_root[@]}"} apt-get update -q
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}"
