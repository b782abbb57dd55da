//go:build race

package metrics_test

// raceDetector slows reading down by an order of magnitude: less is read under
// it.
const raceDetector = true
