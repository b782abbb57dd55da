#!/usr/bin/env bash
# Stands where MaxText's setup.sh does in the documents.
echo "installed"
