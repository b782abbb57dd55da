package sim

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

	storage "google.golang.org/api/storage/v1"
)

// Cloud Storage, JSON API v1, as far as Google's clients for Go and gcloud storage cp,
// mv, ls, cat and rm use it: buckets (get, list, insert, delete, storage layout), objects
// (get, media with ranges, list with prefix and delimiter, the three kinds of insert,
// rewrite, compose, delete), preconditions and partial responses. Not modelled: access
// control lists and policies, holds and retention, changes of metadata, storage classes
// other than STANDARD, folders, notifications, encryption keys. A bucket reports whether
// it keeps versions and soft-deleted objects, but it keeps neither.

// DefaultBucket exists from the start and does not keep overwritten objects.
const DefaultBucket = "multihost-sim"

const (
	maxCompose = 32        // sources of one compose
	maxObject  = 1 << 30   // it is in the simulator's memory; the real limit is 5 TiB
	chunkUnit  = 256 << 10 // chunks of a resumable upload are multiples of this
	softDelete = 604800    // seconds, for a bucket created without another policy
)

var (
	bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`)
	contentRange  = regexp.MustCompile(`^bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$`)
	byteRange     = regexp.MustCompile(`^bytes=(?:(\d+)-(\d*)|-(\d+))$`)
)

type bucket struct {
	msg     *storage.Bucket
	objects map[string]*object
}

type object struct {
	msg  *storage.Object
	data []byte
}

// An upload is an unfinished resumable upload.
type upload struct {
	bucket string
	msg    *storage.Object
	query  url.Values
	fields string // fields parameter of its last answer
	data   []byte
}

func newBucket(name, created string) *bucket {
	return &bucket{objects: map[string]*object{}, msg: &storage.Bucket{
		Kind: "storage#bucket", Id: name, Name: name, Location: "US", LocationType: "multi-region", StorageClass: "STANDARD",
		Metageneration: 1, TimeCreated: created, Updated: created,
	}}
}

// storageTime returns the time in the format of Cloud Storage, in milliseconds.
func (s *Cloud) storageTime() string { return s.clock.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// isStorage reports whether a request is for Cloud Storage.
func isStorage(r *http.Request) bool {
	for _, prefix := range []string{"/storage/v1/", "/upload/storage/v1/", "/resumable/upload/storage/v1/", "/download/storage/v1/"} {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return true
		}
	}
	return false
}

// A storageCall is one request to the Storage API, taken apart:
// /storage/v1/b/BUCKET/o/OBJECT/VERB.
type storageCall struct {
	s      *Cloud
	r      *http.Request
	query  url.Values
	body   []byte
	who    caller
	fields string // wanted fields of the answer; "": all
	upload bool   // on the upload path
	bucket string
	parts  []string // after the bucket: "o", object, verb
}

func (s *Cloud) serveStorage(r *http.Request, body []byte, who caller) answer {
	c, err := s.parseStorage(r, body, who)
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := c.serve()
	if err != nil {
		e := asAPIError(err)
		e.plain = r.URL.Query().Get("alt") == "media"
		return answer{err: e}
	}
	return a
}

func (s *Cloud) parseStorage(r *http.Request, body []byte, who caller) (*storageCall, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	// Names of objects contain slashes, which are escaped in the path.
	path, isUpload := strings.CutPrefix(strings.TrimPrefix(r.URL.EscapedPath(), "/resumable"), "/upload")
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/download"), "/storage/v1/")
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		text, err := url.PathUnescape(part)
		if err != nil || text == "" {
			return nil, unknownMethod()
		}
		parts = append(parts, text)
	}
	if parts[0] != "b" {
		return nil, notModelled("/storage/v1/" + parts[0])
	}
	c := &storageCall{s: s, r: r, query: query, body: body, who: who, fields: query.Get("fields"), upload: isUpload}
	delete(query, "fields")
	if len(parts) > 1 {
		c.bucket, c.parts = parts[1], parts[2:]
	}
	return c, nil
}

// bucketParameters are accepted and have no effect here.
var bucketParameters = []string{"userProject", "projection"}

// notParameters are parameters that the API has and the simulator does not model.
var notParameters = []string{"softDeleted", "softDeletedOnly", "restoreToken", "matchGlob", "filter", "enableObjectRetention", "kmsKeyName", "destinationKmsKeyName"}

func (c *storageCall) serve() (answer, error) {
	for _, name := range notParameters {
		if c.query.Has(name) {
			return answer{}, notModelled("The query parameter " + name)
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
		return answer{}, notModelled("buckets/" + strings.Join(c.parts, "/"))
	}
	b := c.s.state.buckets[c.bucket]
	if b == nil {
		return answer{}, errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if c.upload {
		if len(c.parts) == 1 {
			return c.serveUpload(b)
		}
		return answer{}, unknownMethod()
	}
	for _, m := range objectMethods {
		if names, ok := m.match(c.r.Method, c.parts[1:]); ok {
			return m.serve(c, b, names)
		}
	}
	return answer{}, notModelled("objects." + strings.Join(c.parts[1:], "/"))
}

// serveBuckets serves the collection of all buckets.
func (c *storageCall) serveBuckets() (answer, error) {
	switch {
	case c.r.Method == http.MethodPost && !c.upload:
		return c.insertBucket()
	case c.r.Method == http.MethodGet && !c.upload:
		return c.listBuckets()
	}
	return answer{}, unknownMethod()
}

// An objectMethod is a method of the API for the objects of a bucket.
type objectMethod struct {
	method string
	path   string // below the bucket's objects; * matches one part
	serve  func(c *storageCall, b *bucket, names []string) (answer, error)
}

var objectMethods = []objectMethod{
	{http.MethodGet, "", func(c *storageCall, b *bucket, _ []string) (answer, error) { return c.list(b) }},
	{http.MethodPost, "", func(*storageCall, *bucket, []string) (answer, error) {
		return answer{}, notModelled("objects.insert without media")
	}},
	{http.MethodGet, "*", func(c *storageCall, b *bucket, names []string) (answer, error) { return c.get(b, names[0]) }},
	{http.MethodDelete, "*", func(c *storageCall, b *bucket, names []string) (answer, error) { return c.remove(b, names[0]) }},
	{http.MethodPost, "*/compose", func(c *storageCall, b *bucket, names []string) (answer, error) { return c.compose(b, names[0]) }},
	{http.MethodPost, "*/rewriteTo/b/*/o/*", func(c *storageCall, b *bucket, names []string) (answer, error) {
		return c.rewrite(b, names[0], names[1], names[2])
	}},
}

// match reports whether a request is for the method. names are what the stars of its path
// stand for.
func (m objectMethod) match(method string, parts []string) (names []string, ok bool) {
	want := strings.FieldsFunc(m.path, func(r rune) bool { return r == '/' })
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

// may refuses a caller without a permission.
func (c *storageCall) may(permission, resource string) error {
	if !c.who.may(c.s, permission) {
		text := fmt.Sprintf("%s does not have %s access to the Google Cloud Storage %s. Permission '%s' denied on resource (or it may not exist).", c.who.email, permission, resource, permission)
		return errorf(http.StatusForbidden, "%s", text)
	}
	return nil
}

// answer returns a message, or only its wanted fields.
func (c *storageCall) answer(v any) (answer, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil || c.fields == "" {
		return answer{json: b}, err
	}
	mask, err := parseFields(c.fields, v)
	if err != nil {
		return answer{}, err
	}
	b, err = mask.of(b)
	return answer{json: b}, err
}

func (c *storageCall) insertBucket() (answer, error) {
	if err := checkQuery(c.query, append([]string{"project"}, bucketParameters...)...); err != nil {
		return answer{}, err
	}
	if c.query.Get("project") != c.s.cfg.Project {
		return answer{}, errorf(http.StatusBadRequest, "Unknown project id: %s", c.query.Get("project"))
	}
	msg := new(storage.Bucket)
	if err := decodeStrict(c.body, msg, "bucket"); err != nil {
		return answer{}, err
	}
	if err := c.may("storage.buckets.create", "bucket"); err != nil {
		return answer{}, err
	}
	if !bucketPattern.MatchString(msg.Name) || strings.HasPrefix(msg.Name, "goog") {
		return answer{}, errorf(http.StatusBadRequest, "Invalid bucket name: '%s'", msg.Name)
	}
	if c.s.state.buckets[msg.Name] != nil {
		return answer{}, errorf(http.StatusConflict, "Your previous request to create the named bucket succeeded and you already own it.").withReason("conflict")
	}
	b := newBucket(msg.Name, c.s.storageTime())
	b.msg.SoftDeletePolicy, b.msg.Versioning = cmp.Or(msg.SoftDeletePolicy, &storage.BucketSoftDeletePolicy{RetentionDurationSeconds: softDelete}), msg.Versioning
	c.s.state.buckets[msg.Name] = b
	return c.answer(b.msg)
}

func (c *storageCall) listBuckets() (answer, error) {
	if err := checkQuery(c.query, append([]string{"project", "prefix", "maxResults", "pageToken"}, bucketParameters...)...); err != nil {
		return answer{}, err
	}
	if c.query.Get("project") != c.s.cfg.Project {
		return answer{}, errorf(http.StatusBadRequest, "Unknown project id: %s", c.query.Get("project"))
	}
	if err := c.may("storage.buckets.list", "project"); err != nil {
		return answer{}, err
	}
	var all []*storage.Bucket
	for _, b := range sorted(c.s.state.buckets, nil) {
		if strings.HasPrefix(b.msg.Name, c.query.Get("prefix")) {
			all = append(all, b.msg)
		}
	}
	items, next, err := page(all, c.query, "maxResults", 1000)
	if err != nil {
		return answer{}, err
	}
	return c.answer(&storage.Buckets{Kind: "storage#buckets", Items: items, NextPageToken: next})
}

// storageLayout tells clients that the bucket has no folders of its own.
func (c *storageCall) storageLayout() (answer, error) {
	if err := checkQuery(c.query, "prefix"); err != nil {
		return answer{}, err
	}
	b := c.s.state.buckets[c.bucket]
	if b == nil {
		return answer{}, errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may("storage.objects.list", "bucket"); err != nil {
		return answer{}, err
	}
	return c.answer(&storage.BucketStorageLayout{
		Kind: "storage#storageLayout", Bucket: c.bucket, Location: b.msg.Location, LocationType: b.msg.LocationType,
		HierarchicalNamespace: &storage.BucketStorageLayoutHierarchicalNamespace{ForceSendFields: []string{"Enabled"}},
	})
}

func (c *storageCall) serveBucket() (answer, error) {
	if err := checkQuery(c.query, bucketParameters...); err != nil {
		return answer{}, err
	}
	permission := map[string]string{http.MethodGet: "storage.buckets.get", http.MethodDelete: "storage.buckets.delete"}[c.r.Method]
	if permission == "" {
		return answer{}, notModelled("buckets with " + c.r.Method)
	}
	b := c.s.state.buckets[c.bucket]
	if b == nil {
		return answer{}, errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may(permission, "bucket"); err != nil {
		return answer{}, err
	}
	if c.r.Method == http.MethodGet {
		return c.answer(b.msg)
	}
	if len(b.objects) > 0 {
		return answer{}, errorf(http.StatusConflict, "The bucket you tried to delete is not empty.").withReason("conflict")
	}
	delete(c.s.state.buckets, c.bucket)
	return answer{code: http.StatusNoContent}, nil
}

// preconditions checks the preconditions of a request on the existing object, or on the
// source of a copy, whose parameters have "Source" in their names.
func (c *storageCall) preconditions(o *object, source string) error {
	var generation, metageneration int64
	if o != nil {
		generation, metageneration = o.msg.Generation, o.msg.Metageneration
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
			return errorf(http.StatusBadRequest, "Invalid value at '%s' (TYPE_INT64), %q", snake(p.name), text)
		}
		if (want == p.is) == p.not {
			if p.not && c.r.Method == http.MethodGet {
				return errorf(http.StatusNotModified, "Not modified")
			}
			return errorf(http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
		}
	}
	return nil
}

var generations = []string{"ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch", "userProject", "projection"}

func (c *storageCall) find(b *bucket, name string) (*object, error) {
	o := b.objects[name]
	if text := c.query.Get("generation"); o != nil && text != "" && text != strconv.FormatInt(o.msg.Generation, 10) {
		o = nil // the simulator keeps no old versions
	}
	if o == nil {
		return nil, errorf(http.StatusNotFound, "No such object: %s/%s", c.bucket, name)
	}
	return o, nil
}

func (c *storageCall) get(b *bucket, name string) (answer, error) {
	media := c.query.Get("alt") == "media"
	query := maps.Clone(c.query)
	if media {
		delete(query, "alt")
	}
	if err := checkQuery(query, append([]string{"generation"}, generations...)...); err != nil {
		return answer{}, err
	}
	if err := c.may("storage.objects.get", "object"); err != nil {
		return answer{}, err
	}
	o, err := c.find(b, name)
	if err != nil {
		return answer{}, err
	}
	if err := c.preconditions(o, ""); err != nil {
		return answer{}, err
	}
	if !media {
		return c.answer(o.msg)
	}
	return c.media(o)
}

// media returns the content of an object, or the requested range. It ignores an
// unparsable range, as HTTP requires.
func (c *storageCall) media(o *object) (answer, error) {
	header := http.Header{}
	header.Set("Content-Type", cmp.Or(o.msg.ContentType, "application/octet-stream"))
	header.Set("X-Goog-Generation", strconv.FormatInt(o.msg.Generation, 10))
	header.Add("X-Goog-Hash", "crc32c="+o.msg.Crc32c)
	if o.msg.Md5Hash != "" {
		header.Add("X-Goog-Hash", "md5="+o.msg.Md5Hash)
	}
	header.Set("X-Goog-Stored-Content-Length", strconv.Itoa(len(o.data)))
	if o.msg.ContentEncoding != "" {
		// The real service decompresses gzip if the client does not accept it.
		if !strings.Contains(c.r.Header.Get("Accept-Encoding"), o.msg.ContentEncoding) {
			return answer{}, notModelled("The unpacking of " + o.msg.ContentEncoding)
		}
		header.Set("Content-Encoding", o.msg.ContentEncoding)
		header.Set("X-Goog-Stored-Content-Encoding", o.msg.ContentEncoding)
	}
	a := answer{raw: o.data, header: header, code: http.StatusOK}
	match := byteRange.FindStringSubmatch(c.r.Header.Get("Range"))
	if match == nil {
		return a, nil
	}
	size := int64(len(o.data))
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
		return answer{}, errorf(http.StatusRequestedRangeNotSatisfiable, "The requested range cannot be satisfied.").withReason("requestedRangeNotSatisfiable")
	}
	header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, size))
	a.raw, a.code = o.data[first:last+1], http.StatusPartialContent
	return a, nil
}

func (c *storageCall) list(b *bucket) (answer, error) {
	if err := checkQuery(c.query, "prefix", "delimiter", "maxResults", "pageToken", "startOffset", "endOffset", "userProject", "projection",
		"includeTrailingDelimiter", "includeFoldersAsPrefixes", "versions"); err != nil {
		return answer{}, err
	}
	versions, err := queryBool(c.query, "versions")
	if err != nil {
		return answer{}, err
	}
	if v := b.msg.Versioning; versions && v != nil && v.Enabled {
		return answer{}, notModelled("objects.list of versions")
	}
	withMarkers, err := queryBool(c.query, "includeTrailingDelimiter")
	if err != nil {
		return answer{}, err
	}
	if err := c.may("storage.objects.list", "bucket"); err != nil {
		return answer{}, err
	}
	all := b.entries(selection{
		prefix: c.query.Get("prefix"), delimiter: c.query.Get("delimiter"),
		start: c.query.Get("startOffset"), end: c.query.Get("endOffset"), markers: withMarkers,
	})
	items, next, err := page(all, c.query, "maxResults", 1000)
	if err != nil {
		return answer{}, err
	}
	out := &storage.Objects{Kind: "storage#objects", NextPageToken: next}
	for _, e := range items {
		if e.object == nil {
			out.Prefixes = append(out.Prefixes, e.prefix)
		} else {
			out.Items = append(out.Items, e.object.msg)
		}
	}
	return c.answer(out)
}

// A selection says which objects of a bucket to list, and which of them under their folder
// only.
type selection struct {
	prefix, delimiter string
	start, end        string // names from start on and below end; "" for no end
	markers           bool   // list an object that has the name of a folder, too
}

// An entry of a list is an object, or the common prefix of several.
type entry struct {
	prefix string
	object *object
}

// entries returns what a selection has, in the order of names.
func (b *bucket) entries(sel selection) (all []entry) {
	folder := "" // the last common prefix in all
	for _, name := range slices.Sorted(maps.Keys(b.objects)) {
		rest, ok := strings.CutPrefix(name, sel.prefix)
		if !ok || name < sel.start || sel.end != "" && name >= sel.end {
			continue
		}
		if dir, _, found := strings.Cut(rest, sel.delimiter); sel.delimiter != "" && found {
			dir = sel.prefix + dir + sel.delimiter
			if dir != folder {
				all = append(all, entry{prefix: dir})
				folder = dir
			}
			if name != dir || !sel.markers {
				continue
			}
		}
		all = append(all, entry{object: b.objects[name]})
	}
	return all
}

func (c *storageCall) remove(b *bucket, name string) (answer, error) {
	if err := checkQuery(c.query, append([]string{"generation"}, generations...)...); err != nil {
		return answer{}, err
	}
	if err := c.may("storage.objects.delete", "object"); err != nil {
		return answer{}, err
	}
	o, err := c.find(b, name)
	if err != nil {
		return answer{}, err
	}
	if err := c.preconditions(o, ""); err != nil {
		return answer{}, err
	}
	delete(b.objects, name)
	return answer{code: http.StatusNoContent}, nil
}

func (c *storageCall) compose(b *bucket, name string) (answer, error) {
	if err := checkQuery(c.query, append([]string{"destinationPredefinedAcl"}, generations...)...); err != nil {
		return answer{}, err
	}
	req := new(storage.ComposeRequest)
	if err := decodeStrict(c.body, req, "compose_request"); err != nil {
		return answer{}, err
	}
	if n := len(req.SourceObjects); n == 0 || n > maxCompose {
		return answer{}, errorf(http.StatusBadRequest, "The number of source components provided (%d) is not between 1 and %d", n, maxCompose).withReason("invalid")
	}
	if err := c.may("storage.objects.get", "object"); err != nil {
		return answer{}, err
	}
	var data []byte
	components := int64(0)
	for _, source := range req.SourceObjects {
		o := b.objects[source.Name]
		if o == nil || source.Generation != 0 && source.Generation != o.msg.Generation {
			return answer{}, errorf(http.StatusNotFound, "Object %s (generation: %d) not found.", source.Name, source.Generation)
		}
		data = append(data, o.data...)
		components += max(1, o.msg.ComponentCount)
	}
	msg := cmp.Or(req.Destination, &storage.Object{})
	msg.Name, msg.Crc32c, msg.Md5Hash = name, "", "" // gcloud sends those of the first source
	o, err := c.put(b, c.bucket, msg, data, components)
	if err != nil {
		return answer{}, err
	}
	return c.answer(o.msg)
}

// rewrite copies an object in one call. The real service does so too within one location
// and class.
func (c *storageCall) rewrite(from *bucket, name, toBucket, toName string) (answer, error) {
	parameters := append([]string{"sourceGeneration", "destinationPredefinedAcl", "maxBytesRewrittenPerCall", "ifSourceGenerationMatch", "ifSourceGenerationNotMatch",
		"ifSourceMetagenerationMatch", "ifSourceMetagenerationNotMatch"}, generations...)
	if c.query.Get("rewriteToken") != "" {
		return answer{}, errorf(http.StatusBadRequest, "Invalid rewrite token").withReason("invalid")
	}
	if err := checkQuery(c.query, parameters...); err != nil {
		return answer{}, err
	}
	if text := c.query.Get("maxBytesRewrittenPerCall"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n <= 0 || n%(1<<20) != 0 {
			return answer{}, errorf(http.StatusBadRequest, "maxBytesRewrittenPerCall must be a multiple of 1048576, not %s", text).withReason("invalid")
		}
	}
	msg := new(storage.Object)
	if err := decodeStrict(c.body, msg, "object"); err != nil {
		return answer{}, err
	}
	if err := settable(msg); err != nil {
		return answer{}, err
	}
	to := c.s.state.buckets[toBucket]
	if to == nil {
		return answer{}, errorf(http.StatusNotFound, "The specified bucket does not exist.")
	}
	if err := c.may("storage.objects.get", "object"); err != nil {
		return answer{}, err
	}
	source := from.objects[name]
	if text := c.query.Get("sourceGeneration"); source != nil && text != "" && text != strconv.FormatInt(source.msg.Generation, 10) {
		source = nil
	}
	if source == nil {
		return answer{}, errorf(http.StatusNotFound, "No such object: %s/%s", c.bucket, name)
	}
	if err := c.preconditions(source, "Source"); err != nil {
		return answer{}, err
	}
	// Metadata in the body replaces all metadata of the source.
	if msg.ContentType+msg.ContentEncoding+msg.ContentDisposition+msg.ContentLanguage+msg.CacheControl+msg.CustomTime == "" && len(msg.Metadata) == 0 {
		copied := *source.msg
		msg = &copied
	}
	msg.Name, msg.Crc32c, msg.Md5Hash = toName, "", ""
	o, err := c.put(to, toBucket, msg, source.data, source.msg.ComponentCount)
	if err != nil {
		return answer{}, err
	}
	size := int64(len(o.data))
	return c.answer(&storage.RewriteResponse{
		Kind: "storage#rewriteResponse", Done: true, ObjectSize: size, TotalBytesRewritten: size, Resource: o.msg,
		ForceSendFields: []string{"ObjectSize", "TotalBytesRewritten"},
	})
}

// settable refuses fields that a client may set on a new object but that are not
// modelled. Like the real service, it ignores fields that only the service sets.
func settable(msg *storage.Object) error {
	for name, set := range map[string]bool{
		"acl": len(msg.Acl) > 0, "kmsKeyName": msg.KmsKeyName != "", "retention": msg.Retention != nil, "contexts": msg.Contexts != nil,
		"eventBasedHold": msg.EventBasedHold, "temporaryHold": msg.TemporaryHold,
		"storageClass=" + msg.StorageClass: msg.StorageClass != "" && msg.StorageClass != "STANDARD",
	} {
		if set {
			return notModelled("The field " + name + " of an object")
		}
	}
	return nil
}

// put creates an object and replaces an older one. components is how many objects it is
// composed of; 0 if it is not composed.
func (c *storageCall) put(b *bucket, bucketName string, msg *storage.Object, data []byte, components int64) (*object, error) {
	if msg.Name == "" || len(msg.Name) > 1024 || strings.ContainsAny(msg.Name, "\r\n") {
		return nil, errorf(http.StatusBadRequest, "Invalid object name: %q", msg.Name).withReason("invalid")
	}
	if err := settable(msg); err != nil {
		return nil, err
	}
	if err := c.may("storage.objects.create", "object"); err != nil {
		return nil, err
	}
	old := b.objects[msg.Name]
	if old != nil {
		if err := c.may("storage.objects.delete", "object"); err != nil {
			return nil, err
		}
	}
	if err := c.preconditions(old, ""); err != nil {
		return nil, err
	}
	if len(data) > maxObject {
		return nil, notModelled(fmt.Sprintf("An object of more than %d bytes", maxObject))
	}
	crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	sum := md5.Sum(data)
	crc32c, md5Hash := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc)), base64.StdEncoding.EncodeToString(sum[:])
	if msg.Crc32c != "" && msg.Crc32c != crc32c {
		return nil, errorf(http.StatusBadRequest, "Provided CRC32C %q doesn't match calculated CRC32C %q.", msg.Crc32c, crc32c).withReason("invalid")
	}
	if msg.Md5Hash != "" && msg.Md5Hash != md5Hash {
		return nil, errorf(http.StatusBadRequest, "Provided MD5 hash %q doesn't match calculated MD5 hash %q.", msg.Md5Hash, md5Hash).withReason("invalid")
	}
	if components > 0 {
		md5Hash = "" // composed objects have none
	}
	c.s.state.generation = max(c.s.state.generation+1, c.s.clock.Now().UnixMicro())
	generation, now := c.s.state.generation, c.s.storageTime()
	path := "/storage/v1/b/" + url.PathEscape(bucketName) + "/o/" + url.PathEscape(msg.Name)
	o := &object{data: data, msg: &storage.Object{
		Kind: "storage#object", Name: msg.Name, Bucket: bucketName, Generation: generation, Metageneration: 1,
		Id: fmt.Sprintf("%s/%s/%d", bucketName, msg.Name, generation), Etag: base64.StdEncoding.EncodeToString(strconv.AppendInt(nil, generation, 36)),
		SelfLink: c.s.url + path, MediaLink: fmt.Sprintf("%s/download%s?generation=%d&alt=media", c.s.url, path, generation),
		ContentType: cmp.Or(msg.ContentType, "application/octet-stream"), ContentEncoding: msg.ContentEncoding, ContentDisposition: msg.ContentDisposition,
		ContentLanguage: msg.ContentLanguage, CacheControl: msg.CacheControl, CustomTime: msg.CustomTime, Metadata: msg.Metadata,
		Size: uint64(len(data)), Crc32c: crc32c, Md5Hash: md5Hash, ComponentCount: components, StorageClass: "STANDARD",
		TimeCreated: now, TimeFinalized: now, TimeStorageClassUpdated: now, Updated: now,
		ForceSendFields: []string{"Size"},
	}}
	b.objects[msg.Name] = o
	return o, nil
}

// insert calls put for an upload.
func (c *storageCall) insert(b *bucket, msg *storage.Object, data []byte) (answer, error) {
	msg.ContentEncoding = cmp.Or(c.query.Get("contentEncoding"), msg.ContentEncoding)
	o, err := c.put(b, c.bucket, msg, data, 0)
	if err != nil {
		return answer{}, err
	}
	return c.answer(o.msg)
}

var insertParameters = append([]string{"name", "contentEncoding", "predefinedAcl", "upload_id"}, generations...)

func (c *storageCall) serveUpload(b *bucket) (answer, error) {
	if err := checkQuery(c.query, insertParameters...); err != nil {
		return answer{}, err
	}
	if id := c.query.Get("upload_id"); id != "" {
		return c.resume(b, id)
	}
	if c.r.Method != http.MethodPost {
		return answer{}, unknownMethod()
	}
	msg := &storage.Object{}
	switch kind := c.query.Get("uploadType"); kind {
	case "media":
		msg.Name, msg.ContentType = c.query.Get("name"), c.r.Header.Get("Content-Type")
		return c.insert(b, msg, c.body)
	case "multipart":
		data, err := c.multipart(msg)
		if err != nil {
			return answer{}, err
		}
		msg.Name = cmp.Or(msg.Name, c.query.Get("name"))
		return c.insert(b, msg, data)
	case "resumable":
		if err := decodeStrict(c.body, msg, "object"); err != nil {
			return answer{}, err
		}
		msg.Name = cmp.Or(msg.Name, c.query.Get("name"))
		msg.ContentType = cmp.Or(msg.ContentType, c.r.Header.Get("X-Upload-Content-Type"))
		if err := c.may("storage.objects.create", "object"); err != nil {
			return answer{}, err
		}
		id := strconv.FormatInt(newID(), 36)
		c.s.state.uploads[id] = &upload{bucket: c.bucket, msg: msg, query: c.query, fields: c.fields}
		at := *c.r.URL
		query := maps.Clone(c.query)
		query.Set("upload_id", id)
		at.Scheme, at.Host, at.RawQuery = "http", c.r.Host, query.Encode()
		header := http.Header{}
		header.Set("Location", at.String())
		header.Set("X-GUploader-UploadID", id)
		return answer{header: header, code: http.StatusOK}, nil
	default:
		return answer{}, errorf(http.StatusBadRequest, "Invalid value for uploadType: %q", kind)
	}
}

// multipart reads a multipart/related body: the resource, then the content.
func (c *storageCall) multipart(msg *storage.Object) ([]byte, error) {
	// gcloud puts the boundary, which contains "=", into single quotes; the real service
	// accepts that.
	kind, params, err := mime.ParseMediaType(strings.ReplaceAll(c.r.Header.Get("Content-Type"), "'", `"`))
	if err != nil || kind != "multipart/related" {
		return nil, errorf(http.StatusBadRequest, "Content-Type of a multipart upload must be multipart/related")
	}
	parts := multipart.NewReader(bytes.NewReader(c.body), params["boundary"])
	var bodies [][]byte
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, errorf(http.StatusBadRequest, "Malformed multipart body: %v", err)
		}
		b, err := io.ReadAll(part)
		if err != nil {
			return nil, errorf(http.StatusBadRequest, "Malformed multipart body: %v", err)
		}
		bodies = append(bodies, b)
		if len(bodies) == 2 {
			msg.ContentType = cmp.Or(msg.ContentType, part.Header.Get("Content-Type"))
		} else if err := decodeStrict(b, msg, "object"); err != nil {
			return nil, err
		}
	}
	if len(bodies) != 2 {
		return nil, errorf(http.StatusBadRequest, "A multipart upload has two parts, not %d", len(bodies))
	}
	return bodies[1], nil
}

// resume takes one chunk of a resumable upload, or reports how much has arrived. Google's
// client cannot handle status 308 and sends a header that says so.
func (c *storageCall) resume(b *bucket, id string) (answer, error) {
	u := c.s.state.uploads[id]
	if u == nil || u.bucket != c.bucket {
		return answer{}, errorf(http.StatusNotFound, "No such upload: %s", id)
	}
	if c.r.Method == http.MethodDelete {
		delete(c.s.state.uploads, id)
		return answer{code: 499}, nil
	}
	first, total, err := chunk(c.r.Header.Get("Content-Range"), len(c.body))
	switch {
	case err != nil:
		return answer{}, err
	case first >= 0 && first != int64(len(u.data)):
		return answer{}, errorf(http.StatusServiceUnavailable, "Invalid request.  According to the Content-Range header, the upload offset is %d byte(s), but there are %d.", first, len(u.data))
	case len(u.data)+len(c.body) > maxObject:
		return answer{}, notModelled(fmt.Sprintf("An object of more than %d bytes", maxObject))
	}
	u.data = append(u.data, c.body...)
	if total >= 0 && total == int64(len(u.data)) {
		delete(c.s.state.uploads, id)
		c.query, c.fields = u.query, u.fields
		return c.insert(b, u.msg, u.data)
	}
	if len(c.body)%chunkUnit != 0 {
		return answer{}, errorf(http.StatusBadRequest, "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except for the final request.")
	}
	a := answer{header: http.Header{}, code: http.StatusPermanentRedirect}
	if len(u.data) > 0 {
		a.header.Set("Range", fmt.Sprintf("bytes=0-%d", len(u.data)-1))
	}
	if c.r.Header.Get("X-GUploader-No-308") == "yes" {
		a.header.Set("X-Http-Status-Code-Override", "308")
		a.code = http.StatusOK
	}
	return a, nil
}

// chunk parses a Content-Range header. first is -1 if no bytes are sent, total if it is
// not known yet.
func chunk(header string, size int) (first, total int64, err error) {
	if header == "" {
		return 0, int64(size), nil // everything in one request
	}
	bad := errorf(http.StatusBadRequest, "Invalid Content-Range: %q", header)
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
func (s *Cloud) Objects(name string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.state.buckets[name]
	if b == nil {
		return nil
	}
	var all []Object
	for _, o := range sorted(b.objects, nil) {
		updated, _ := time.Parse(time.RFC3339Nano, o.msg.Updated)
		all = append(all, Object{o.msg.Name, slices.Clone(o.data), updated})
	}
	return all
}
