package codesync

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/config"
	"multihost/internal/remote"
)

// An answer is the answer of one step of the worker script.
type answer struct {
	word    string // same, differs, missing, filled, lacks
	missing []string
	relays  bool // the worker can fetch from others
	removed int  // files of an earlier sync that were removed; for look, that would be

	base, baseDigest string // run that was synced last, and the digest of its manifest
}

// parseAnswer parses the script's answer after its marker; it ignores what login scripts
// print before.
func parseAnswer(step string, out, stderr []byte, status remote.Status) (answer, error) {
	said, err := parseStatement(step, out, stderr)
	if err != nil {
		return answer{}, err
	}
	if status.Code == 0 && status.Signal == "" {
		if ans, ok := said.answer(step); ok {
			return ans, nil
		}
	}
	how := fmt.Sprintf("exit status %d", status.Code)
	if status.Signal != "" {
		how = "killed by SIG" + status.Signal
	}
	text := lastLine(stderr)
	if text == "" {
		text = lastLine(out)
	}
	return answer{}, &WorkerError{step, fmt.Sprintf("no answer, %s: %q", how, clip(text))}
}

// A statement is the last line with a marker, and the hashes that the script listed.
type statement struct {
	word   string
	args   []string
	hashes []string
}

// parseStatement reads the output of a step. Its error is the failure that the script
// reports, or a line that is no hash in a list of hashes.
func parseStatement(step string, out, stderr []byte) (statement, error) {
	var said statement
	listing := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if _, text, marked := strings.Cut(line, marker); marked {
			said.word, said.args = "", nil
			if words := strings.Fields(text); len(words) > 0 {
				said.word, said.args = words[0], words[1:]
			}
			if err := failure(step, said.word, text, stderr); err != nil {
				return said, err
			}
			listing = said.word == "missing" || said.word == "lacks"
			continue
		}
		if !listing {
			continue
		}
		if !hashName.MatchString(line) {
			return said, &WorkerError{step, fmt.Sprintf("answer not understood: %q", clip(line))}
		}
		said.hashes = append(said.hashes, line)
	}
	return said, nil
}

// failure returns the error that the script reports with text, which begins with word, or nil.
func failure(step, word, text string, stderr []byte) error {
	switch word {
	case "busy":
		return &InUseError{remote.Clean(strings.TrimPrefix(text, word), 200)}
	case "foreign":
		kind, target, _ := strings.Cut(strings.TrimPrefix(text, "foreign "), " ")
		return &ForeignError{What: kind, Target: remote.Clean(target, 200)}
	case "error", "broken":
		reason := strings.TrimSpace(strings.TrimPrefix(text, word))
		if detail := lastLine(stderr); detail != "" {
			reason += ": " + detail
		}
		err := &WorkerError{step, strings.ToValidUTF8(clip(reason), "\uFFFD")}
		if word == "broken" {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	return nil
}

// mayAnswer returns the words with which a step may answer.
func mayAnswer(step string) []string {
	switch step {
	case "check":
		return []string{"same", "differs"}
	case "look":
		return []string{"lacks"}
	}
	return []string{"missing", "filled"}
}

// answer returns what a statement answers to a step. It reports whether the statement is a
// whole answer to that step.
func (s statement) answer(step string) (ans answer, ok bool) {
	if !slices.Contains(mayAnswer(step), s.word) {
		return ans, false
	}
	ans = answer{word: s.word, missing: s.hashes}
	args := append(slices.Clip(s.args), "", "") // so that two can be looked at
	count := strconv.Itoa(len(s.hashes))
	switch s.word {
	case "same":
		return ans, true
	case "differs":
		if len(s.args) == 2 && config.CheckRunName(args[0]) == nil && hashName.MatchString(args[1]) {
			ans.base, ans.baseDigest = args[0], args[1]
		}
		return ans, true
	case "lacks":
		ans.removed, ok = parseCount(args[1])
		return ans, ok && len(s.args) == 2 && args[0] == count
	case "filled":
		ans.removed, ok = parseCount(args[0])
		return ans, ok && len(s.args) == 1
	case "missing":
		ok = len(s.args) > 0 && args[0] == count && len(s.hashes) > 0
		ans.relays = ok && slices.Equal(s.args[1:], []string{"relays"})
		ans.missing = slices.Compact(slices.Sorted(slices.Values(s.hashes)))
		return ans, ok
	}
	return ans, false
}

func parseCount(text string) (n int, ok bool) {
	count, err := strconv.ParseUint(text, 10, 31)
	return int(count), err == nil
}

func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

func clip(text string) string {
	if len(text) > 500 {
		text = text[:500] + "…"
	}
	return text
}
