//go:build race

package main

// raceDetector takes memory of its own: it is not measured under it.
const raceDetector = true
