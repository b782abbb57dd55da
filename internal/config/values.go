package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ParseBool parses the value of the string flag name. It accepts only true and false, in
// any case. Everything else, even "1" and "yes", is an error that says what to type,
// because a misread boolean can change what is billed.
func ParseBool(name, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	flag := "--" + strings.TrimLeft(name, "-")
	return false, fmt.Errorf("%s %q: want %s=true or %s=false", flag, value, flag, flag)
}

var (
	zonePattern   = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+-(ai[0-9]+)?[a-z]$`)
	regionPattern = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+$`)
)

// CheckZone returns an error if zone does not have the form of Google's zones. It does not know
// which zones exist.
func CheckZone(zone string) error {
	switch {
	case zone == "":
		return errors.New("no zone: give --zone, or set one with gcloud config set compute/zone ZONE")
	case zonePattern.MatchString(zone):
		return nil
	case regionPattern.MatchString(zone):
		return fmt.Errorf("zone %q is a region: a zone ends in a letter, such as %s-a", zone, zone)
	}
	return fmt.Errorf("zone %q: want the form us-central2-b", zone)
}

var projectPattern = regexp.MustCompile(`^([a-z][a-z0-9.-]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$|^[0-9]+$`)

// CheckProject returns an error if project does not have the form of a project id or number.
func CheckProject(project string) error {
	switch {
	case project == "":
		return errors.New("no project: give --project, or set one with gcloud config set project PROJECT")
	case !projectPattern.MatchString(project):
		return fmt.Errorf("project %q: want a project id (6 to 30 lower-case letters, digits and dashes), not its display name", project)
	}
	return nil
}

var runName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// MaxRunName is the largest length of a run's name in bytes. Each worker has a file
// UID-RUN-ATTEMPT.run, and a file name has at most 255 bytes. Other uses of the name may
// allow less: the name of a queued resource has at most 63.
const MaxRunName = 255 - len("4294967295-") - len("-1000000000.run")

// CheckRunName returns an error if s cannot be the name of a run. The name becomes a
// directory in the login's home on every worker.
func CheckRunName(s string) error {
	switch {
	case s == "":
		return errors.New("run name is empty")
	case len(s) > MaxRunName:
		return fmt.Errorf("run name %q has %d bytes: at most %d are possible, since files are named after it", s, len(s), MaxRunName)
	case runName.MatchString(s):
		return nil
	}
	return fmt.Errorf("run name %q: want letters, digits, dots, underscores and dashes, beginning with a letter or digit", s)
}

// RunName returns a name for a run of user: "ada-20260102-150405-ab3f". The name is legal as a
// queued resource id, with room for a slice number, and as a directory. It contains the time now.
// Its last part is random, from rnd, so that two runs of the same second get different names.
func RunName(user string, now time.Time, rnd io.Reader) string {
	var b [2]byte
	if _, err := io.ReadFull(rnd, b[:]); err != nil {
		n := now.Nanosecond()
		b = [2]byte{byte(n >> 8), byte(n)}
	}
	name := strings.Trim(legalise(user), "-")
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = strings.TrimRight("u"+name, "-")
	}
	name = strings.TrimRight(name[:min(len(name), 20)], "-")
	return fmt.Sprintf("%s-%s-%s", name, now.Format("20060102-150405"), hex.EncodeToString(b[:]))
}

// legalise converts s to lower case and replaces every rune except a letter a-z, a digit
// and a dash by a dash.
func legalise(s string) string {
	return strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, strings.ToLower(s))
}

// loginFallback is the login if neither this machine nor the account has a usable name.
const loginFallback = "multihost"

// LocalUser returns the default login name on workers: this machine's login in a legal
// form. It is never root, because the workers' images refuse root logins. For root it
// returns the local part of account, or "multihost" if that gives no name. If the login
// differs from the local name, note is a sentence for the user, otherwise "".
func LocalUser(lookup Lookup, account string) (login, note string) {
	local := get(lookup, "USER")
	for _, key := range []string{"LOGNAME", "USERNAME"} {
		if local == "" {
			local = get(lookup, key)
		}
	}
	// On Windows the name may be DOMAIN\name.
	local = local[strings.LastIndexByte(local, '\\')+1:]
	if local != "root" {
		if login := legalLogin(local); login == local && login != "" {
			return login, ""
		} else if login != "" && login != "root" {
			return login, fmt.Sprintf("login name on workers: %q (made of the local login %q; --user changes it)", login, local)
		}
	}
	why := "this machine's login is root"
	if local != "root" {
		why = fmt.Sprintf("this machine's login %q is no legal name", local)
	}
	part, _, _ := strings.Cut(account, "@")
	login = legalLogin(part)
	if login == "" || login == "root" {
		login = loginFallback
	}
	return login, fmt.Sprintf("login name on workers: %q (%s; --user changes it)", login, why)
}

// legalLogin turns s into a name that useradd accepts, or returns "" if s has no letter a-z
// and no digit.
func legalLogin(s string) string {
	var b strings.Builder
	letters := false
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			letters = true
			b.WriteRune(r)
		case r == '-' || r == '_':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	if !letters {
		return ""
	}
	out := b.String()
	if c := out[0]; c != '_' && (c < 'a' || c > 'z') {
		out = "g" + out // gcloud's prefix, so that both use the same login
	}
	return out[:min(len(out), 32)]
}

// StateDir returns the directory of multihost's logs and records:
// $XDG_STATE_HOME/multihost, else ~/.local/state/multihost.
func StateDir(lookup Lookup, home string) string {
	// The XDG specification says to ignore relative paths.
	if dir := get(lookup, "XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "multihost")
	}
	return filepath.Join(home, ".local", "state", "multihost")
}

// RuntimeDir returns the directory of the sockets and records of running processes:
// $XDG_RUNTIME_DIR/multihost, else a directory of this user below $TMPDIR or /tmp. The
// caller that makes it must give it mode 0700.
func RuntimeDir(lookup Lookup) string {
	if dir := get(lookup, "XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "multihost")
	}
	tmp := get(lookup, "TMPDIR")
	if !filepath.IsAbs(tmp) {
		tmp = "/tmp"
	}
	return filepath.Join(tmp, "multihost-"+strconv.Itoa(os.Getuid()))
}

// ParseSize reads a number of bytes with an optional kB, MB or GB. "none" means -1.
func ParseSize(text string) (int64, error) {
	if text == "none" {
		return -1, nil
	}
	upper := strings.ToUpper(text)
	scale := int64(1)
	for _, unit := range []struct {
		suffix string
		scale  int64
	}{{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}} {
		if rest, ok := strings.CutSuffix(upper, unit.suffix); ok {
			upper, scale = strings.TrimSpace(rest), unit.scale
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(upper, "B"), 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/scale {
		return 0, fmt.Errorf("size %q: want a number with kB, MB or GB, or none", text)
	}
	return n * scale, nil
}

// ParseLimit reads a number that is 0 or more. "unlimited" means -1.
func ParseLimit(text string) (int, error) {
	if text == "unlimited" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && n < 0 {
		err = strconv.ErrRange
	}
	return n, err
}

// sinceForms are forms of times without a zone, which are in the local zone.
var sinceForms = []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02", "15:04:05", "15:04"}

// ParseSince reads a duration before now, or a time. A time of day without a date means
// today, or yesterday if that time is still to come today.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return time.Time{}, fmt.Errorf("--since=%s: the duration must not be negative", text)
		}
		return now.Add(-d), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, form := range sinceForms {
		at, err := time.ParseInLocation(form, text, now.Location())
		if err != nil {
			continue
		}
		if at.Year() == 0 {
			at = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), now.Location())
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
		}
		return at, nil
	}
	return time.Time{}, fmt.Errorf("--since=%s: it is neither a duration nor a time", text)
}
