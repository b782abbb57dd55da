#!/usr/bin/env bash
# Stands where a script of MaxText does in the documents.
python3 train.py --steps=3
