// Package gcloud reads and writes the syntax of gcloud's command line: filters and sort
// keys of lists, durations, times, and dictionaries. It accepts the same texts as gcloud,
// with the same meaning. It is pure and knows no resource of Google Cloud: a filter looks
// at decoded JSON.
package gcloud
