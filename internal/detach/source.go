package detach

import "context"

// A Source is where the state and logs of jobs without runner are. Bucket and BucketDir are
// the place that the user gave for the named run. If they are empty, the place is that in
// this machine's record of the run.
type Source struct {
	OpenBucket        func(ctx context.Context, bucket, dir string) (*Bucket, error)
	Bucket, BucketDir string
}
