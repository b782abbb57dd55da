#!/bin/sh
# whoami of a simulated worker.
exec "${0%/*}/id" -un
