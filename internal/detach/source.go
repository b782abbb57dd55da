package detach

import "context"

// A Source is the place of the state and logs of jobs without runner. Bucket and BucketDir
// come from the user. If they are empty, this machine's record of the run has the place.
type Source struct {
	OpenBucket        func(ctx context.Context, bucket, dir string) (*Bucket, error)
	Bucket, BucketDir string
}
