#!/usr/bin/env bash
# Stands in the place of a script of MaxText that the documents name.
python3 train.py --steps=3
