#!/usr/bin/env bash
#
# Prints what is installed on a worker, and the free space of its disks. It changes nothing
# and needs no permissions.
#
# A line of the answer is a key and a value. The last line is "end".
tab=$'\t'

# room KEY PATH: prints the free bytes and the size in bytes of the disk of PATH.
room() {
  local free all size
  read -r free all size < <(stat -f -c '%a %b %S' -- "$2" 2>/dev/null)
  [[ -n $size ]] && say_fields "$1" "$((free * size)) $((all * size))"
}

# versions: prints the versions of the packages for training, from their metadata. It does
# not import the packages, because that would take the TPU.
versions() {
  have python3 || return
  timeout -k 2 20 python3 -I -S -c 'import sys; print("python\t%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
  timeout -k 2 20 python3 -c '
from importlib import metadata
for name in ("jax", "jaxlib", "libtpu", "libtpu-nightly"):
    try:
        print(name + "\t" + metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
' 2>/dev/null
}

if [[ -z ${MULTIHOST_ROOT_PROC-} ]]; then
  PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
fi
say_fields kernel "$(uname -r)"
while IFS=$tab read -r name version; do
  [[ -n $version ]] && say_fields "$name" "$version"
done < <(versions </dev/null)
for tool in python3 numactl ethtool ping; do
  have "$tool" && say tool "$tool"
done
room home "${HOME:-/}"
room tmp "${MULTIHOST_ROOT_TMP-}/tmp"
say end
