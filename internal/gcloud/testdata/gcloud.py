"""Asks an installed gcloud, in one process, what the tests compare with.

The argument is the root of the SDK. Standard input is a JSON object with the
filters, a resource, and the times and durations; standard output has gcloud's
answers, and the flags of its commands for queued resources.
"""
import json
import sys

root = sys.argv[1] + '/lib'
sys.path[:0] = [root, root + '/third_party']

# pylint: disable=g-import-not-at-top
from googlecloudsdk import gcloud_main
from googlecloudsdk.core.resource import resource_filter
from googlecloudsdk.core.util import times


def attempt(f, *args):
  try:
    return f(*args)
  except Exception as e:  # pylint: disable=broad-except
    return 'error: %s' % e


def flags(command):
  top = gcloud_main.CreateCLI([])._TopElement()  # pylint: disable=protected-access
  element = top.LoadSubElementByPath(['alpha', 'compute', 'tpus', 'queued-resources', command])
  names = {o for f in element.GetAllAvailableFlags() for o in f.option_strings}
  return sorted(n[2:] for n in names if n.startswith('--') and n[2] != '-')


asked = json.load(sys.stdin)
json.dump({
    'flags': {c: flags(c) for c in ('create', 'delete', 'describe', 'list', 'reset')},
    'filters': {f: attempt(lambda f: resource_filter.Compile(f).Evaluate(asked['resource']), f) for f in asked['filters']},
    'times': {t: attempt(lambda t: times.GetTimeStampFromDateTime(times.ParseDateTime(t, tzinfo=times.UTC)), t) for t in asked['times']},
    'durations': {d: attempt(lambda d: times.ParseDuration(d).total_seconds, d) for d in asked['durations']},
}, sys.stdout)
