# shellcheck shell=bash
# lease_text FILE: prints the lease FILE as far as its owner is trusted. Every login can
# write a lease. What is called with the VM's token, and which workers there are, count
# only in a file of root or of this login.
lease_text() {
  if [[ -O $1 || $(stat -c %u -- "$1") == 0 ]]; then
    head -c 65536 -- "$1"
  else
    head -c 65536 -- "$1" | grep -vE '^(deletion|peers|nodes|total)='
  fi
}
