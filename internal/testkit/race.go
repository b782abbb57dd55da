//go:build race

package testkit

// RaceDetector says whether the tests run under the race detector, which needs several
// times the CPU time and memory. Then tests do not check limits on these.
const RaceDetector = true
