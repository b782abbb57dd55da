#!/usr/bin/env bash
# Replaces MaxText's setup.sh in the documents.
echo "installed"
