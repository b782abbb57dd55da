#!/usr/bin/env bash
# Stands in the place of MaxText's setup.sh in the documents.
echo "installed"
