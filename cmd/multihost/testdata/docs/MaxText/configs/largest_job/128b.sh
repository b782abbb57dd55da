#!/usr/bin/env bash
# Replaces a script of MaxText that the documents name.
python3 train.py --steps=3
