//go:build !race

package testkit

// RaceDetector says whether the tests run under the race detector, which needs several times the
// CPU time and memory. Tests check limits on these only if RaceDetector is false.
const RaceDetector = false
