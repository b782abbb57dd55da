//go:build !race

package testkit

// RaceDetector says whether the tests run under the race detector. The race detector needs
// several times the CPU time and memory. So tests do not check limits on these then.
const RaceDetector = false
