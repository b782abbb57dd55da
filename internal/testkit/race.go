//go:build race

package testkit

// RaceDetector says that the tests run under the race detector, which costs
// several times the CPU and memory: bounds on either are not judged.
const RaceDetector = true
