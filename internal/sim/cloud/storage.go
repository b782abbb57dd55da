package cloud

import (
	"net/http"
	"net/url"
	"strings"

	storage "google.golang.org/api/storage/v1"
)

// DefaultBucket exists from the start. It does not keep overwritten objects.
const DefaultBucket = "multihost-sim"

// A Bucket is a bucket of Cloud Storage, with its objects by name.
type Bucket struct {
	Msg     *storage.Bucket
	Objects map[string]*StoredObject
}

// A StoredObject is an object with its content.
type StoredObject struct {
	Msg  *storage.Object
	Data []byte
}

// An Upload is an unfinished resumable upload.
type Upload struct {
	Bucket string
	Msg    *storage.Object
	Query  url.Values
	Fields string // the request's parameter "fields", for the last answer
	Data   []byte
}

// NewBucket returns an empty bucket. created is a time of Cloud Storage.
func NewBucket(name, created string) *Bucket {
	return &Bucket{Objects: map[string]*StoredObject{}, Msg: &storage.Bucket{
		Kind: "storage#bucket", Id: name, Name: name, Location: "US", LocationType: "multi-region", StorageClass: "STANDARD",
		Metageneration: 1, TimeCreated: created, Updated: created,
	}}
}

// StorageTime returns the time now in the format of Cloud Storage, with milliseconds.
func (s *Cloud) StorageTime() string { return s.Clock.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// IsStorage reports whether a request is for Cloud Storage.
func IsStorage(r *http.Request) bool {
	for _, prefix := range []string{"/storage/v1/", "/upload/storage/v1/", "/resumable/upload/storage/v1/", "/download/storage/v1/"} {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return true
		}
	}
	return false
}
