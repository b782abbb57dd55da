// Package gcloud reads and writes the syntax of gcloud's command line: filters and sort keys
// of lists, durations, times, and dictionaries. What it takes, and what that means, is the
// same as in gcloud. It is pure and knows no resource of Google Cloud: a filter looks at
// decoded JSON.
package gcloud
