package job

import (
	"time"

	"multihost/internal/event"
)

func bytesText(n int64) string { return event.Bytes(n) }

func age(d time.Duration) string { return event.Age(d) }
