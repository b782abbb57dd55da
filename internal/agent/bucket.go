package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Bucket has the objects of a Cloud Storage bucket whose names begin with one prefix. Its
// methods take and return names without the prefix.
type Bucket struct {
	Client  *Client
	Storage string // root of the JSON API, with version
	Upload  string // root for uploads, with version
	Name    string
	Prefix  string
}

// An Object describes a version of an object.
type Object struct {
	Name       string
	Size       int64 // bytes
	Generation int64 // 0: there is no object
	Updated    time.Time
}

// AnyVersion sets no condition: Write replaces the object, or makes it if it does not
// exist.
const AnyVersion int64 = -1

func (b *Bucket) url(name string) string {
	return b.Storage + "/b/" + b.Name + "/o/" + url.PathEscape(b.Prefix+name)
}

// Get copies an object to w. generation is 0 if the service does not report the generation.
func (b *Bucket) Get(ctx context.Context, name string, w io.Writer) (generation int64, err error) {
	answer, err := b.Client.Do(ctx, Call{Method: http.MethodGet, URL: b.url(name) + "?alt=media", Into: w})
	if err != nil {
		return 0, err
	}
	generation, _ = strconv.ParseInt(answer.Header.Get("X-Goog-Generation"), 10, 64)
	return generation, nil
}

// Read returns a small object.
func (b *Bucket) Read(ctx context.Context, name string) (text []byte, generation int64, err error) {
	var buffer bytes.Buffer
	generation, err = b.Get(ctx, name, &buffer)
	return buffer.Bytes(), generation, err
}

// Clock returns the present time by the clock of Cloud Storage, or zero if the service does
// not report the time. Any name will do, even of an object that does not exist.
func (b *Bucket) Clock(ctx context.Context, name string) (time.Time, error) {
	var date time.Time
	client := *b.Client
	client.Transport = dated{b.Client.Transport, &date}
	_, err := client.Do(ctx, Call{Method: http.MethodGet, URL: b.url(name) + "?alt=media"})
	if StatusOf(err) == http.StatusNotFound {
		err = nil
	}
	return date, err
}

// dated notes the date of each answer. Refusals have a date too.
type dated struct {
	http.RoundTripper
	date *time.Time
}

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		*d.date = dateOf(resp.Header)
	}
	return resp, err
}

// dateOf returns the date of an answer, or zero if the answer has no date.
func dateOf(h http.Header) time.Time {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return date
}

// Write makes or replaces an object. If generation is not AnyVersion, the object must have
// that generation; for 0, the object must not exist. Otherwise the error is a *StatusError
// of 412.
func (b *Bucket) Write(ctx context.Context, name string, body io.Reader, size, generation int64) error {
	target := b.Upload + "/b/" + b.Name + "/o?uploadType=media&name=" + url.QueryEscape(b.Prefix+name) + condition("&", generation)
	_, err := b.Client.Do(ctx, Call{Method: http.MethodPost, URL: target, Type: "text/plain", Body: body, Size: size})
	return err
}

func condition(before string, generation int64) string {
	if generation == AnyVersion {
		return ""
	}
	return before + "ifGenerationMatch=" + strconv.FormatInt(generation, 10)
}

// Stat describes an object. It also returns the present time by the clock of Cloud Storage,
// or zero if the service does not report the time.
func (b *Bucket) Stat(ctx context.Context, name string) (Object, time.Time, error) {
	answer, err := b.Client.Do(ctx, Call{Method: http.MethodGet, URL: b.url(name)})
	if err != nil {
		return Object{}, time.Time{}, err
	}
	var o object
	if err := json.Unmarshal(answer.Body, &o); err != nil {
		return Object{}, time.Time{}, fmt.Errorf("read what %s is: %w", name, err)
	}
	return o.plain(), dateOf(answer.Header), nil
}

// object is an Object in the service's JSON.
type object struct {
	Name       string    `json:"name"`
	Size       int64     `json:"size,string"`
	Generation int64     `json:"generation,string"`
	Updated    time.Time `json:"updated"`
}

func (o object) plain() Object { return Object(o) }

// List returns the objects whose names begin with prefix, in the form of Bucket's names.
// List also returns the present time by the clock of Cloud Storage.
func (b *Bucket) List(ctx context.Context, prefix string) (all []Object, date time.Time, err error) {
	for token := ""; ; {
		target := b.Storage + "/b/" + b.Name + "/o?prefix=" + url.QueryEscape(b.Prefix+prefix)
		if token != "" {
			target += "&pageToken=" + url.QueryEscape(token)
		}
		answer, err := b.Client.Do(ctx, Call{Method: http.MethodGet, URL: target})
		if err != nil {
			return nil, date, err
		}
		var page struct {
			Items []object `json:"items"`
			Next  string   `json:"nextPageToken"`
		}
		if err := json.Unmarshal(answer.Body, &page); err != nil {
			return nil, date, fmt.Errorf("read the list of %s: %w", prefix, err)
		}
		for _, o := range page.Items {
			if len(o.Name) >= len(b.Prefix) && o.Name[:len(b.Prefix)] == b.Prefix {
				o.Name = o.Name[len(b.Prefix):]
				all = append(all, o.plain())
			}
		}
		date = dateOf(answer.Header)
		if token = page.Next; token == "" {
			return all, date, nil
		}
	}
}

// Append adds the content of one object at the end of another. The parameter part names the
// first, and the parameter name the second. The second object must have this generation,
// otherwise the error is a *StatusError of 412.
func (b *Bucket) Append(ctx context.Context, name string, generation int64, part string) error {
	type source struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation,string,omitempty"`
	}
	request := struct {
		Sources     []source          `json:"sourceObjects"`
		Destination map[string]string `json:"destination"`
	}{[]source{{b.Prefix + name, generation}, {Name: b.Prefix + part}}, map[string]string{"contentType": "text/plain"}}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	target := b.url(name) + "/compose" + condition("?", generation)
	_, err = b.Client.Do(ctx, Call{Method: http.MethodPost, URL: target, Type: "application/json", Body: bytes.NewReader(body), Size: int64(len(body))})
	return err
}

// Remove deletes an object. If the object does not exist, the error is a *StatusError of
// 404.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	_, err := b.Client.Do(ctx, Call{Method: http.MethodDelete, URL: b.url(name)})
	return err
}
