//go:build race

package ui

// raceDetector slows the tests of throughput down by an order of magnitude:
// they do less work under it.
const raceDetector = true
