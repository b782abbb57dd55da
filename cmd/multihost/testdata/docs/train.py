"""Stands where a trainer does in the documents: prints steps as MaxText does.

Words are NAME=VALUE: steps, and fail=N for a worker whose process is to fail.
"""
import os
import sys
import time

words = dict(w.split("=", 1) for w in sys.argv[1:] if "=" in w)
me = int(os.environ["MULTIHOST_PROCESS_ID"])
for step in range(int(words.get("steps", 5))):
    time.sleep(0.02)
    print(f"completed step: {step}, seconds: 2.000, TFLOP/s/device: 131.500, "
          f"Tokens/s/device: 4094.000, total_weights: 65536, loss: {3 - step / 10:.3f}", flush=True)
if me == int(words.get("fail", -1)):
    print("ValueError: batch 3 has 511 rows, want 512", file=sys.stderr)
    sys.exit(3)
if "fail" in words:
    time.sleep(60)  # waits for the others in the next step, as trainers do
