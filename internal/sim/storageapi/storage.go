package storageapi

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	storage "google.golang.org/api/storage/v1"
)

// Cloud Storage, JSON API v1, as far as Google's clients for Go and gcloud storage cp, mv,
// ls, cat and rm use it: buckets (get, list, insert, delete, storage layout), objects (get,
// media with ranges, list with prefix and delimiter, the three kinds of insert, rewrite,
// compose, delete), preconditions and partial responses. Not modelled: access control lists
// and policies, holds and retention, changes of metadata, storage classes other than
// STANDARD, folders, notifications, encryption keys. A bucket says whether it keeps
// versions and soft-deleted objects, but keeps neither.

const (
	maxCompose = 32        // sources of one compose
	MaxObject  = 1 << 30   // the simulator keeps objects in memory; the real limit is 5 TiB
	chunkUnit  = 256 << 10 // chunk sizes of a resumable upload are multiples of this
	softDelete = 604800    // seconds, for a bucket without another policy
)

var (
	bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`)
	contentRange  = regexp.MustCompile(`^bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$`)
	byteRange     = regexp.MustCompile(`^bytes=(?:(\d+)-(\d*)|-(\d+))$`)
)

// A storageCall is one request to the Storage API with its parts:
// /storage/v1/b/BUCKET/o/OBJECT/VERB.
type storageCall struct {
	s      *cloud.Cloud
	r      *http.Request
	query  url.Values
	body   []byte
	who    cloud.Caller
	fields string // wanted fields of the answer; "": all fields
	upload bool   // on the upload path
	bucket string
	parts  []string // path after the bucket: "o", object, verb
}

// ServeStorage answers a request. It takes the lock.
func (s API) ServeStorage(r *http.Request, body []byte, who cloud.Caller) wire.Answer {
	c, err := s.parseStorage(r, body, who)
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	a, err := c.serve()
	if err != nil {
		e := wire.AsAPIError(err)
		e.Plain = r.URL.Query().Get("alt") == "media"
		return wire.Answer{Err: e}
	}
	return a
}

func (s API) parseStorage(r *http.Request, body []byte, who cloud.Caller) (*storageCall, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	// An object's name may contain slashes, which the path escapes.
	path, isUpload := strings.CutPrefix(strings.TrimPrefix(r.URL.EscapedPath(), "/resumable"), "/upload")
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/download"), "/storage/v1/")
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		text, err := url.PathUnescape(part)
		if err != nil || text == "" {
			return nil, wire.UnknownMethod()
		}
		parts = append(parts, text)
	}
	if parts[0] != "b" {
		return nil, wire.NotModelled("/storage/v1/" + parts[0])
	}
	c := &storageCall{s: s.Cloud, r: r, query: query, body: body, who: who, fields: query.Get("fields"), upload: isUpload}
	delete(query, "fields")
	if len(parts) > 1 {
		c.bucket, c.parts = parts[1], parts[2:]
	}
	return c, nil
}

// bucketParameters are accepted without an effect.
var bucketParameters = []string{"userProject", "projection"}

// notParameters are parameters of the API that the simulator does not model.
var notParameters = []string{"softDeleted", "softDeletedOnly", "restoreToken", "matchGlob", "filter", "enableObjectRetention", "kmsKeyName", "destinationKmsKeyName"}

func (c *storageCall) serve() (wire.Answer, error) {
	for _, name := range notParameters {
		if c.query.Has(name) {
			return wire.Answer{}, wire.NotModelled("The query parameter " + name)
		}
	}
	switch {
	case c.bucket == "":
		return c.serveBuckets()
	case len(c.parts) == 0 && !c.upload:
		return c.serveBucket()
	case len(c.parts) == 1 && c.parts[0] == "storageLayout" && c.r.Method == http.MethodGet && !c.upload:
		return c.storageLayout()
	case len(c.parts) == 0 || c.parts[0] != "o":
		return wire.Answer{}, wire.NotModelled("buckets/" + strings.Join(c.parts, "/"))
	}
	b := c.s.State.Buckets[c.bucket]
	if b == nil {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if c.upload {
		if len(c.parts) == 1 {
			return c.serveUpload(b)
		}
		return wire.Answer{}, wire.UnknownMethod()
	}
	for _, m := range ObjectMethods {
		if names, ok := m.Match(c.r.Method, c.parts[1:]); ok {
			return m.serve(c, b, names)
		}
	}
	return wire.Answer{}, wire.NotModelled("objects." + strings.Join(c.parts[1:], "/"))
}

// serveBuckets serves the collection of all buckets.
func (c *storageCall) serveBuckets() (wire.Answer, error) {
	switch {
	case c.r.Method == http.MethodPost && !c.upload:
		return c.insertBucket()
	case c.r.Method == http.MethodGet && !c.upload:
		return c.listBuckets()
	}
	return wire.Answer{}, wire.UnknownMethod()
}

// An objectMethod is a method of the API for the objects of a bucket.
type objectMethod struct {
	method string
	Path   string // path below the bucket's objects; * matches one part
	serve  func(c *storageCall, b *cloud.Bucket, names []string) (wire.Answer, error)
}

var ObjectMethods = []objectMethod{
	{http.MethodGet, "", func(c *storageCall, b *cloud.Bucket, _ []string) (wire.Answer, error) { return c.list(b) }},
	{http.MethodPost, "", func(*storageCall, *cloud.Bucket, []string) (wire.Answer, error) {
		return wire.Answer{}, wire.NotModelled("objects.insert without media")
	}},
	{http.MethodGet, "*", func(c *storageCall, b *cloud.Bucket, names []string) (wire.Answer, error) { return c.get(b, names[0]) }},
	{http.MethodDelete, "*", func(c *storageCall, b *cloud.Bucket, names []string) (wire.Answer, error) {
		return c.remove(b, names[0])
	}},
	{http.MethodPost, "*/compose", func(c *storageCall, b *cloud.Bucket, names []string) (wire.Answer, error) {
		return c.compose(b, names[0])
	}},
	{http.MethodPost, "*/rewriteTo/b/*/o/*", func(c *storageCall, b *cloud.Bucket, names []string) (wire.Answer, error) {
		return c.rewrite(b, names[0], names[1], names[2])
	}},
}

// Match reports whether a request is for the method. names are the parts in place of the
// stars.
func (m objectMethod) Match(method string, parts []string) (names []string, ok bool) {
	want := strings.FieldsFunc(m.Path, func(r rune) bool { return r == '/' })
	if method != m.method || len(parts) != len(want) {
		return nil, false
	}
	for i, part := range parts {
		if want[i] == "*" {
			names = append(names, part)
		} else if part != want[i] {
			return nil, false
		}
	}
	return names, true
}

// may returns an error for a caller without a permission.
func (c *storageCall) may(permission, resource string) error {
	if !c.who.May(c.s, permission) {
		text := fmt.Sprintf("%s does not have %s access to the Google Cloud Storage %s. Permission '%s' denied on resource (or it may not exist).", c.who.Email, permission, resource, permission)
		return wire.Errorf(http.StatusForbidden, "%s", text)
	}
	return nil
}

// answer returns a message, or only its wanted fields.
func (c *storageCall) answer(v any) (wire.Answer, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil || c.fields == "" {
		return wire.Answer{JSON: b}, err
	}
	mask, err := wire.ParseFields(c.fields, v)
	if err != nil {
		return wire.Answer{}, err
	}
	b, err = mask.Of(b)
	return wire.Answer{JSON: b}, err
}

func (c *storageCall) insertBucket() (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, append([]string{"project"}, bucketParameters...)...); err != nil {
		return wire.Answer{}, err
	}
	if c.query.Get("project") != c.s.Config.Project {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Unknown project id: %s", c.query.Get("project"))
	}
	msg := new(storage.Bucket)
	if err := wire.DecodeStrict(c.body, msg, "bucket"); err != nil {
		return wire.Answer{}, err
	}
	if err := c.may("storage.buckets.create", "bucket"); err != nil {
		return wire.Answer{}, err
	}
	if !bucketPattern.MatchString(msg.Name) || strings.HasPrefix(msg.Name, "goog") {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Invalid bucket name: '%s'", msg.Name)
	}
	if c.s.State.Buckets[msg.Name] != nil {
		return wire.Answer{}, wire.Errorf(http.StatusConflict, "Your previous request to create the named bucket succeeded and you already own it.").WithReason("conflict")
	}
	b := cloud.NewBucket(msg.Name, c.s.StorageTime())
	b.Msg.SoftDeletePolicy, b.Msg.Versioning = cmp.Or(msg.SoftDeletePolicy, &storage.BucketSoftDeletePolicy{RetentionDurationSeconds: softDelete}), msg.Versioning
	c.s.State.Buckets[msg.Name] = b
	return c.answer(b.Msg)
}

func (c *storageCall) listBuckets() (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, append([]string{"project", "prefix", "maxResults", "pageToken"}, bucketParameters...)...); err != nil {
		return wire.Answer{}, err
	}
	if c.query.Get("project") != c.s.Config.Project {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Unknown project id: %s", c.query.Get("project"))
	}
	if err := c.may("storage.buckets.list", "project"); err != nil {
		return wire.Answer{}, err
	}
	var all []*storage.Bucket
	for _, b := range cloud.Sorted(c.s.State.Buckets, nil) {
		if strings.HasPrefix(b.Msg.Name, c.query.Get("prefix")) {
			all = append(all, b.Msg)
		}
	}
	items, next, err := wire.Page(all, c.query, "maxResults", 1000)
	if err != nil {
		return wire.Answer{}, err
	}
	return c.answer(&storage.Buckets{Kind: "storage#buckets", Items: items, NextPageToken: next})
}

// storageLayout answers that the bucket has no folders.
func (c *storageCall) storageLayout() (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, "prefix"); err != nil {
		return wire.Answer{}, err
	}
	b := c.s.State.Buckets[c.bucket]
	if b == nil {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may("storage.objects.list", "bucket"); err != nil {
		return wire.Answer{}, err
	}
	return c.answer(&storage.BucketStorageLayout{
		Kind: "storage#storageLayout", Bucket: c.bucket, Location: b.Msg.Location, LocationType: b.Msg.LocationType,
		HierarchicalNamespace: &storage.BucketStorageLayoutHierarchicalNamespace{ForceSendFields: []string{"Enabled"}},
	})
}

func (c *storageCall) serveBucket() (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, bucketParameters...); err != nil {
		return wire.Answer{}, err
	}
	permission := map[string]string{http.MethodGet: "storage.buckets.get", http.MethodDelete: "storage.buckets.delete"}[c.r.Method]
	if permission == "" {
		return wire.Answer{}, wire.NotModelled("buckets with " + c.r.Method)
	}
	b := c.s.State.Buckets[c.bucket]
	if b == nil {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may(permission, "bucket"); err != nil {
		return wire.Answer{}, err
	}
	if c.r.Method == http.MethodGet {
		return c.answer(b.Msg)
	}
	if len(b.Objects) > 0 {
		return wire.Answer{}, wire.Errorf(http.StatusConflict, "The bucket you tried to delete is not empty.").WithReason("conflict")
	}
	delete(c.s.State.Buckets, c.bucket)
	return wire.Answer{Code: http.StatusNoContent}, nil
}

// preconditions checks the preconditions of a request, which are about the existing object
// or about the source of a copy. For a source, the names of the parameters contain
// "Source".
func (c *storageCall) preconditions(o *cloud.StoredObject, source string) error {
	var generation, metageneration int64
	if o != nil {
		generation, metageneration = o.Msg.Generation, o.Msg.Metageneration
	}
	for _, p := range []struct {
		name string
		is   int64
		not  bool
	}{
		{"if" + source + "GenerationMatch", generation, false}, {"if" + source + "GenerationNotMatch", generation, true},
		{"if" + source + "MetagenerationMatch", metageneration, false}, {"if" + source + "MetagenerationNotMatch", metageneration, true},
	} {
		text := c.query.Get(p.name)
		if text == "" {
			continue
		}
		want, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return wire.Errorf(http.StatusBadRequest, "Invalid value at '%s' (TYPE_INT64), %q", wire.Snake(p.name), text)
		}
		if (want == p.is) == p.not {
			if p.not && c.r.Method == http.MethodGet {
				return wire.Errorf(http.StatusNotModified, "Not modified")
			}
			return wire.Errorf(http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
		}
	}
	return nil
}

var generations = []string{"ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch", "userProject", "projection"}

// allowed returns the object, if the account has the permission and the call's
// preconditions hold.
func (c *storageCall) allowed(permission string, b *cloud.Bucket, name string) (*cloud.StoredObject, error) {
	if err := c.may(permission, "object"); err != nil {
		return nil, err
	}
	o, err := c.find(b, name)
	if err != nil {
		return nil, err
	}
	return o, c.preconditions(o, "")
}

func (c *storageCall) find(b *cloud.Bucket, name string) (*cloud.StoredObject, error) {
	o := b.Objects[name]
	if text := c.query.Get("generation"); o != nil && text != "" && text != strconv.FormatInt(o.Msg.Generation, 10) {
		o = nil // the simulator keeps no old versions
	}
	if o == nil {
		return nil, wire.Errorf(http.StatusNotFound, "No such object: %s/%s", c.bucket, name)
	}
	return o, nil
}

func (c *storageCall) get(b *cloud.Bucket, name string) (wire.Answer, error) {
	media := c.query.Get("alt") == "media"
	query := maps.Clone(c.query)
	if media {
		delete(query, "alt")
	}
	if err := wire.CheckQuery(query, append([]string{"generation"}, generations...)...); err != nil {
		return wire.Answer{}, err
	}
	o, err := c.allowed("storage.objects.get", b, name)
	if err != nil {
		return wire.Answer{}, err
	}
	if !media {
		return c.answer(o.Msg)
	}
	return c.media(o)
}

// media returns the content of an object, or the requested range. As HTTP requires, it
// ignores a range that it cannot parse.
func (c *storageCall) media(o *cloud.StoredObject) (wire.Answer, error) {
	header := http.Header{}
	header.Set("Content-Type", cmp.Or(o.Msg.ContentType, "application/octet-stream"))
	header.Set("X-Goog-Generation", strconv.FormatInt(o.Msg.Generation, 10))
	header.Add("X-Goog-Hash", "crc32c="+o.Msg.Crc32c)
	if o.Msg.Md5Hash != "" {
		header.Add("X-Goog-Hash", "md5="+o.Msg.Md5Hash)
	}
	header.Set("X-Goog-Stored-Content-Length", strconv.Itoa(len(o.Data)))
	if o.Msg.ContentEncoding != "" {
		// The real service decompresses gzip for clients that do not accept it.
		if !strings.Contains(c.r.Header.Get("Accept-Encoding"), o.Msg.ContentEncoding) {
			return wire.Answer{}, wire.NotModelled("The unpacking of " + o.Msg.ContentEncoding)
		}
		header.Set("Content-Encoding", o.Msg.ContentEncoding)
		header.Set("X-Goog-Stored-Content-Encoding", o.Msg.ContentEncoding)
	}
	a := wire.Answer{Raw: o.Data, Header: header, Code: http.StatusOK}
	match := byteRange.FindStringSubmatch(c.r.Header.Get("Range"))
	if match == nil {
		return a, nil
	}
	size := int64(len(o.Data))
	first, last := int64(0), size-1
	number := func(text string) int64 { n, _ := strconv.ParseInt(text, 10, 63); return n }
	if match[3] != "" {
		first = max(0, size-number(match[3]))
	} else {
		first = number(match[1])
		if match[2] != "" {
			last = min(last, number(match[2]))
		}
	}
	if first >= size || first > last {
		return wire.Answer{}, wire.Errorf(http.StatusRequestedRangeNotSatisfiable, "The requested range cannot be satisfied.").WithReason("requestedRangeNotSatisfiable")
	}
	header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, size))
	a.Raw, a.Code = o.Data[first:last+1], http.StatusPartialContent
	return a, nil
}

func (c *storageCall) list(b *cloud.Bucket) (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, "prefix", "delimiter", "maxResults", "pageToken", "startOffset", "endOffset", "userProject", "projection",
		"includeTrailingDelimiter", "includeFoldersAsPrefixes", "versions"); err != nil {
		return wire.Answer{}, err
	}
	versions, err := wire.QueryBool(c.query, "versions")
	if err != nil {
		return wire.Answer{}, err
	}
	if v := b.Msg.Versioning; versions && v != nil && v.Enabled {
		return wire.Answer{}, wire.NotModelled("objects.list of versions")
	}
	withMarkers, err := wire.QueryBool(c.query, "includeTrailingDelimiter")
	if err != nil {
		return wire.Answer{}, err
	}
	if err := c.may("storage.objects.list", "bucket"); err != nil {
		return wire.Answer{}, err
	}
	all := Entries(b, Selection{
		Prefix: c.query.Get("prefix"), Delimiter: c.query.Get("delimiter"),
		Start: c.query.Get("startOffset"), End: c.query.Get("endOffset"), Markers: withMarkers,
	})
	items, next, err := wire.Page(all, c.query, "maxResults", 1000)
	if err != nil {
		return wire.Answer{}, err
	}
	out := &storage.Objects{Kind: "storage#objects", NextPageToken: next}
	for _, e := range items {
		if e.Object == nil {
			out.Prefixes = append(out.Prefixes, e.Prefix)
		} else {
			out.Items = append(out.Items, e.Object.Msg)
		}
	}
	return c.answer(out)
}

// A Selection says which objects of a bucket to list, and of which to list only the folder.
type Selection struct {
	Prefix, Delimiter string
	Start, End        string // names from Start and before End; "": no end
	Markers           bool   // also list an object with the name of a folder
}

// An entry of a list is an object or the common prefix of several objects.
type entry struct {
	Prefix string
	Object *cloud.StoredObject
}

// Entries returns the content of a selection, in the order of names.
func Entries(b *cloud.Bucket, sel Selection) (all []entry) {
	folder := "" // the last common prefix in all
	for _, name := range slices.Sorted(maps.Keys(b.Objects)) {
		rest, ok := strings.CutPrefix(name, sel.Prefix)
		if !ok || name < sel.Start || sel.End != "" && name >= sel.End {
			continue
		}
		if dir, _, found := strings.Cut(rest, sel.Delimiter); sel.Delimiter != "" && found {
			dir = sel.Prefix + dir + sel.Delimiter
			if dir != folder {
				all = append(all, entry{Prefix: dir})
				folder = dir
			}
			if name != dir || !sel.Markers {
				continue
			}
		}
		all = append(all, entry{Object: b.Objects[name]})
	}
	return all
}

func (c *storageCall) remove(b *cloud.Bucket, name string) (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, append([]string{"generation"}, generations...)...); err != nil {
		return wire.Answer{}, err
	}
	if _, err := c.allowed("storage.objects.delete", b, name); err != nil {
		return wire.Answer{}, err
	}
	delete(b.Objects, name)
	return wire.Answer{Code: http.StatusNoContent}, nil
}

func (c *storageCall) compose(b *cloud.Bucket, name string) (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, append([]string{"destinationPredefinedAcl"}, generations...)...); err != nil {
		return wire.Answer{}, err
	}
	req := new(storage.ComposeRequest)
	if err := wire.DecodeStrict(c.body, req, "compose_request"); err != nil {
		return wire.Answer{}, err
	}
	if n := len(req.SourceObjects); n == 0 || n > maxCompose {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "The number of source components provided (%d) is not between 1 and %d", n, maxCompose).WithReason("invalid")
	}
	if err := c.may("storage.objects.get", "object"); err != nil {
		return wire.Answer{}, err
	}
	var data []byte
	components := int64(0)
	for _, source := range req.SourceObjects {
		o := b.Objects[source.Name]
		if o == nil || source.Generation != 0 && source.Generation != o.Msg.Generation {
			return wire.Answer{}, wire.Errorf(http.StatusNotFound, "Object %s (generation: %d) not found.", source.Name, source.Generation)
		}
		data = append(data, o.Data...)
		components += max(1, o.Msg.ComponentCount)
	}
	msg := cmp.Or(req.Destination, &storage.Object{})
	msg.Name, msg.Crc32c, msg.Md5Hash = name, "", "" // gcloud sends the properties of the first source
	o, err := c.put(b, c.bucket, msg, data, components)
	if err != nil {
		return wire.Answer{}, err
	}
	return c.answer(o.Msg)
}

// rewrite copies an object in one call. The real service does so, too, within one location
// and class.
func (c *storageCall) rewrite(from *cloud.Bucket, name, toBucket, toName string) (wire.Answer, error) {
	parameters := append([]string{"sourceGeneration", "destinationPredefinedAcl", "maxBytesRewrittenPerCall", "ifSourceGenerationMatch", "ifSourceGenerationNotMatch",
		"ifSourceMetagenerationMatch", "ifSourceMetagenerationNotMatch"}, generations...)
	if c.query.Get("rewriteToken") != "" {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Invalid rewrite token").WithReason("invalid")
	}
	if err := wire.CheckQuery(c.query, parameters...); err != nil {
		return wire.Answer{}, err
	}
	if text := c.query.Get("maxBytesRewrittenPerCall"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n <= 0 || n%(1<<20) != 0 {
			return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "maxBytesRewrittenPerCall must be a multiple of 1048576, not %s", text).WithReason("invalid")
		}
	}
	msg := new(storage.Object)
	if err := wire.DecodeStrict(c.body, msg, "object"); err != nil {
		return wire.Answer{}, err
	}
	if err := settable(msg); err != nil {
		return wire.Answer{}, err
	}
	to := c.s.State.Buckets[toBucket]
	if to == nil {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may("storage.objects.get", "object"); err != nil {
		return wire.Answer{}, err
	}
	source := from.Objects[name]
	if text := c.query.Get("sourceGeneration"); source != nil && text != "" && text != strconv.FormatInt(source.Msg.Generation, 10) {
		source = nil
	}
	if source == nil {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "No such object: %s/%s", c.bucket, name)
	}
	if err := c.preconditions(source, "Source"); err != nil {
		return wire.Answer{}, err
	}
	// Metadata in the body replaces all metadata of the source.
	if msg.ContentType+msg.ContentEncoding+msg.ContentDisposition+msg.ContentLanguage+msg.CacheControl+msg.CustomTime == "" && len(msg.Metadata) == 0 {
		copied := *source.Msg
		msg = &copied
	}
	msg.Name, msg.Crc32c, msg.Md5Hash = toName, "", ""
	o, err := c.put(to, toBucket, msg, source.Data, source.Msg.ComponentCount)
	if err != nil {
		return wire.Answer{}, err
	}
	size := int64(len(o.Data))
	return c.answer(&storage.RewriteResponse{
		Kind: "storage#rewriteResponse", Done: true, ObjectSize: size, TotalBytesRewritten: size, Resource: o.Msg,
		ForceSendFields: []string{"ObjectSize", "TotalBytesRewritten"},
	})
}

// settable returns an error for fields that a client may set on a new object but that are
// not modelled. Like the real service, it ignores fields that only the service sets.
func settable(msg *storage.Object) error {
	for name, set := range map[string]bool{
		"acl": len(msg.Acl) > 0, "kmsKeyName": msg.KmsKeyName != "", "retention": msg.Retention != nil, "contexts": msg.Contexts != nil,
		"eventBasedHold": msg.EventBasedHold, "temporaryHold": msg.TemporaryHold,
		"storageClass=" + msg.StorageClass: msg.StorageClass != "" && msg.StorageClass != "STANDARD",
	} {
		if set {
			return wire.NotModelled("The field " + name + " of an object")
		}
	}
	return nil
}

// put creates an object or replaces an older one. components is the number of objects of
// which it is composed, or 0.
func (c *storageCall) put(b *cloud.Bucket, bucketName string, msg *storage.Object, data []byte, components int64) (*cloud.StoredObject, error) {
	if msg.Name == "" || len(msg.Name) > 1024 || strings.ContainsAny(msg.Name, "\r\n") {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid object name: %q", msg.Name).WithReason("invalid")
	}
	if err := settable(msg); err != nil {
		return nil, err
	}
	if err := c.may("storage.objects.create", "object"); err != nil {
		return nil, err
	}
	old := b.Objects[msg.Name]
	if old != nil {
		if err := c.may("storage.objects.delete", "object"); err != nil {
			return nil, err
		}
	}
	if err := c.preconditions(old, ""); err != nil {
		return nil, err
	}
	if len(data) > MaxObject {
		return nil, wire.NotModelled(fmt.Sprintf("An object of more than %d bytes", MaxObject))
	}
	crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	sum := md5.Sum(data)
	crc32c, md5Hash := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc)), base64.StdEncoding.EncodeToString(sum[:])
	if msg.Crc32c != "" && msg.Crc32c != crc32c {
		return nil, wire.Errorf(http.StatusBadRequest, "Provided CRC32C %q doesn't match calculated CRC32C %q.", msg.Crc32c, crc32c).WithReason("invalid")
	}
	if msg.Md5Hash != "" && msg.Md5Hash != md5Hash {
		return nil, wire.Errorf(http.StatusBadRequest, "Provided MD5 hash %q doesn't match calculated MD5 hash %q.", msg.Md5Hash, md5Hash).WithReason("invalid")
	}
	if components > 0 {
		md5Hash = "" // composed objects have none
	}
	c.s.State.Generation = max(c.s.State.Generation+1, c.s.Clock.Now().UnixMicro())
	generation, now := c.s.State.Generation, c.s.StorageTime()
	path := "/storage/v1/b/" + url.PathEscape(bucketName) + "/o/" + url.PathEscape(msg.Name)
	o := &cloud.StoredObject{Data: data, Msg: &storage.Object{
		Kind: "storage#object", Name: msg.Name, Bucket: bucketName, Generation: generation, Metageneration: 1,
		Id: fmt.Sprintf("%s/%s/%d", bucketName, msg.Name, generation), Etag: base64.StdEncoding.EncodeToString(strconv.AppendInt(nil, generation, 36)),
		SelfLink: c.s.BaseURL + path, MediaLink: fmt.Sprintf("%s/download%s?generation=%d&alt=media", c.s.BaseURL, path, generation),
		ContentType: cmp.Or(msg.ContentType, "application/octet-stream"), ContentEncoding: msg.ContentEncoding, ContentDisposition: msg.ContentDisposition,
		ContentLanguage: msg.ContentLanguage, CacheControl: msg.CacheControl, CustomTime: msg.CustomTime, Metadata: msg.Metadata,
		Size: uint64(len(data)), Crc32c: crc32c, Md5Hash: md5Hash, ComponentCount: components, StorageClass: "STANDARD",
		TimeCreated: now, TimeFinalized: now, TimeStorageClassUpdated: now, Updated: now,
		ForceSendFields: []string{"Size"},
	}}
	b.Objects[msg.Name] = o
	return o, nil
}

// insert calls put for an upload.
func (c *storageCall) insert(b *cloud.Bucket, msg *storage.Object, data []byte) (wire.Answer, error) {
	msg.ContentEncoding = cmp.Or(c.query.Get("contentEncoding"), msg.ContentEncoding)
	o, err := c.put(b, c.bucket, msg, data, 0)
	if err != nil {
		return wire.Answer{}, err
	}
	return c.answer(o.Msg)
}

var insertParameters = append([]string{"name", "contentEncoding", "predefinedAcl", "upload_id"}, generations...)

func (c *storageCall) serveUpload(b *cloud.Bucket) (wire.Answer, error) {
	if err := wire.CheckQuery(c.query, insertParameters...); err != nil {
		return wire.Answer{}, err
	}
	if id := c.query.Get("upload_id"); id != "" {
		return c.resume(b, id)
	}
	if c.r.Method != http.MethodPost {
		return wire.Answer{}, wire.UnknownMethod()
	}
	msg := &storage.Object{}
	switch kind := c.query.Get("uploadType"); kind {
	case "media":
		msg.Name, msg.ContentType = c.query.Get("name"), c.r.Header.Get("Content-Type")
		return c.insert(b, msg, c.body)
	case "multipart":
		data, err := c.multipart(msg)
		if err != nil {
			return wire.Answer{}, err
		}
		msg.Name = cmp.Or(msg.Name, c.query.Get("name"))
		return c.insert(b, msg, data)
	case "resumable":
		if err := wire.DecodeStrict(c.body, msg, "object"); err != nil {
			return wire.Answer{}, err
		}
		msg.Name = cmp.Or(msg.Name, c.query.Get("name"))
		msg.ContentType = cmp.Or(msg.ContentType, c.r.Header.Get("X-Upload-Content-Type"))
		if err := c.may("storage.objects.create", "object"); err != nil {
			return wire.Answer{}, err
		}
		id := strconv.FormatInt(cloud.NewID(), 36)
		c.s.State.Uploads[id] = &cloud.Upload{Bucket: c.bucket, Msg: msg, Query: c.query, Fields: c.fields}
		at := *c.r.URL
		query := maps.Clone(c.query)
		query.Set("upload_id", id)
		at.Scheme, at.Host, at.RawQuery = "http", c.r.Host, query.Encode()
		header := http.Header{}
		header.Set("Location", at.String())
		header.Set("X-GUploader-UploadID", id)
		return wire.Answer{Header: header, Code: http.StatusOK}, nil
	default:
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Invalid value for uploadType: %q", kind)
	}
}

// multipart reads a multipart/related body: the resource, then the content.
func (c *storageCall) multipart(msg *storage.Object) ([]byte, error) {
	// gcloud puts the boundary, which contains "=", into single quotes. The real service
	// accepts that.
	kind, params, err := mime.ParseMediaType(strings.ReplaceAll(c.r.Header.Get("Content-Type"), "'", `"`))
	if err != nil || kind != "multipart/related" {
		return nil, wire.Errorf(http.StatusBadRequest, "Content-Type of a multipart upload must be multipart/related")
	}
	parts := multipart.NewReader(bytes.NewReader(c.body), params["boundary"])
	var bodies [][]byte
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, wire.Errorf(http.StatusBadRequest, "Malformed multipart body: %v", err)
		}
		b, err := io.ReadAll(part)
		if err != nil {
			return nil, wire.Errorf(http.StatusBadRequest, "Malformed multipart body: %v", err)
		}
		bodies = append(bodies, b)
		if len(bodies) == 2 {
			msg.ContentType = cmp.Or(msg.ContentType, part.Header.Get("Content-Type"))
		} else if err := wire.DecodeStrict(b, msg, "object"); err != nil {
			return nil, err
		}
	}
	if len(bodies) != 2 {
		return nil, wire.Errorf(http.StatusBadRequest, "A multipart upload has two parts, not %d", len(bodies))
	}
	return bodies[1], nil
}

// resume takes one chunk of a resumable upload, or without a chunk reports how much has
// arrived. Google's client cannot handle status 308, and says so in a header.
func (c *storageCall) resume(b *cloud.Bucket, id string) (wire.Answer, error) {
	u := c.s.State.Uploads[id]
	if u == nil || u.Bucket != c.bucket {
		return wire.Answer{}, wire.Errorf(http.StatusNotFound, "No such upload: %s", id)
	}
	if c.r.Method == http.MethodDelete {
		delete(c.s.State.Uploads, id)
		return wire.Answer{Code: 499}, nil
	}
	first, total, err := chunk(c.r.Header.Get("Content-Range"), len(c.body))
	switch {
	case err != nil:
		return wire.Answer{}, err
	case first >= 0 && first != int64(len(u.Data)):
		return wire.Answer{}, wire.Errorf(http.StatusServiceUnavailable, "Invalid request.  According to the Content-Range header, the upload offset is %d byte(s), but there are %d.", first, len(u.Data))
	case len(u.Data)+len(c.body) > MaxObject:
		return wire.Answer{}, wire.NotModelled(fmt.Sprintf("An object of more than %d bytes", MaxObject))
	}
	u.Data = append(u.Data, c.body...)
	if total >= 0 && total == int64(len(u.Data)) {
		delete(c.s.State.Uploads, id)
		c.query, c.fields = u.Query, u.Fields
		return c.insert(b, u.Msg, u.Data)
	}
	if len(c.body)%chunkUnit != 0 {
		return wire.Answer{}, wire.Errorf(http.StatusBadRequest, "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except for the final request.")
	}
	a := wire.Answer{Header: http.Header{}, Code: http.StatusPermanentRedirect}
	if len(u.Data) > 0 {
		a.Header.Set("Range", fmt.Sprintf("bytes=0-%d", len(u.Data)-1))
	}
	if c.r.Header.Get("X-GUploader-No-308") == "yes" {
		a.Header.Set("X-Http-Status-Code-Override", "308")
		a.Code = http.StatusOK
	}
	return a, nil
}

// chunk parses a Content-Range header. first is -1 if the request has no bytes, total is -1
// if it is unknown so far.
func chunk(header string, size int) (first, total int64, err error) {
	if header == "" {
		return 0, int64(size), nil // everything in one request
	}
	bad := wire.Errorf(http.StatusBadRequest, "Invalid Content-Range: %q", header)
	match := contentRange.FindStringSubmatch(header)
	if match == nil {
		return 0, 0, bad
	}
	first, total = -1, -1
	if match[3] != "*" {
		if total, err = strconv.ParseInt(match[3], 10, 63); err != nil {
			return 0, 0, bad
		}
	}
	if match[1] != "" {
		last, _ := strconv.ParseInt(match[2], 10, 63)
		if first, err = strconv.ParseInt(match[1], 10, 63); err != nil || last-first+1 != int64(size) {
			return 0, 0, bad
		}
	} else if size > 0 {
		return 0, 0, bad
	}
	return first, total, nil
}

// An Object is the content of one object of a bucket, for tests.
type Object struct {
	Name    string
	Data    []byte
	Updated time.Time
}

// Objects returns the objects of a bucket, by name.
func (s API) Objects(name string) []Object {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	b := s.State.Buckets[name]
	if b == nil {
		return nil
	}
	var all []Object
	for _, o := range cloud.Sorted(b.Objects, nil) {
		updated, _ := time.Parse(time.RFC3339Nano, o.Msg.Updated)
		all = append(all, Object{o.Msg.Name, slices.Clone(o.Data), updated})
	}
	return all
}
