//go:build !race

package testkit

// RaceDetector says whether the tests run under the race detector. It costs several times
// the CPU and memory, so tests then do not check limits on these.
const RaceDetector = false
