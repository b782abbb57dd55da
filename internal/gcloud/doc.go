// Package gcloud reads and writes the syntax of gcloud's command line: filters and sort keys of
// lists, durations, times, and dictionaries. It accepts the same texts as gcloud, with the same
// meaning. It does no I/O and knows no resource of Google Cloud. A filter looks at decoded
// JSON.
package gcloud
