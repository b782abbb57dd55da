package detach

import "context"

// A Source is where the state and logs of jobs without runner are. Bucket and BucketDir
// are where the user says that the named run is. Empty: where this machine's record of
// the run says.
type Source struct {
	OpenBucket        func(ctx context.Context, bucket, dir string) (*Bucket, error)
	Bucket, BucketDir string
}
