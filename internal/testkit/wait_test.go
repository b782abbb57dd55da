package testkit_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/testkit"
)

func TestAWaitLeavesTheProcessorToOthers(t *testing.T) {
	for _, row := range []struct {
		look, limit time.Duration
		looks       int
	}{
		{0, 100 * time.Millisecond, 51},
		{0, time.Second, 167},
		{0, 10 * time.Second, 300},
		{time.Millisecond, 100 * time.Millisecond, 11},
		{10 * time.Millisecond, time.Second, 11},
		{100 * time.Millisecond, time.Second, 6},
	} {
		t.Run(fmt.Sprint(row.look, " for ", row.limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks := 0
				holds := testkit.Await(row.limit, func() bool {
					looks++
					<-time.After(row.look)
					return false
				})
				if holds || looks > row.looks+2 || looks < row.looks-2 {
					t.Errorf("%d looks, %v; want %d", looks, holds, row.looks)
				}
			})
		})
	}
}

func TestAWaitEndsWithItsCondition(t *testing.T) {
	looks := 0
	if !testkit.Await(time.Minute, func() bool { looks++; return looks == 3 }) || looks != 3 {
		t.Errorf("%d looks, want 3", looks)
	}
}

func TestProcessesAreFoundByTheirFiles(t *testing.T) {
	if found := testkit.Processes("cmdline", os.Args[0]+"\x00"); !slices.Contains(found, os.Getpid()) {
		t.Errorf("this process is not among %v", found)
	}
	if found := testkit.Processes("cmdline", fmt.Sprint("no process has this word ", os.Getpid())); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
