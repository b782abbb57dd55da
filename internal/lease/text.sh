# shellcheck shell=bash
# lease_text FILE: prints the lines of the lease FILE for which its owner is trusted. Every
# login can write a lease. Lines about calls with the VM's token, and about the workers of
# the job, count only in a file of root or of this login.
lease_text() {
  if [[ -O $1 || $(stat -c %u -- "$1") == 0 ]]; then
    head -c 65536 -- "$1"
  else
    head -c 65536 -- "$1" | grep -vE '^(deletion|peers|nodes|total)='
  fi
}
