package codesync

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/config"
	"multihost/internal/remote"
)

type answer struct {
	word    string // same, differs, missing, filled, lacks
	missing []string
	relays  bool // the worker can fetch from other workers
	removed int  // number of removed files of an earlier sync; after look: of files that a sync would remove

	base, baseDigest string // run of the last sync, and digest of its manifest
}

// hearing receives the answer of one step.
type hearing struct {
	remote.Answer
	most   int      // the worker may list this many hashes
	hashes []string // from the lines "hash"
	filled func()   // called when the worker reports that the directory is complete; may be nil
}

func newHearing(most int, filled func()) *hearing {
	h := &hearing{Answer: remote.Answer{Nonce: remote.NewNonce()}, most: most, filled: filled}
	h.Next = h.next
	return h
}

// next takes the hashes out of the answer, because a remote.Answer may be too small for all
// of them. It leaves other records, and lists with too many hashes, to failure and answer.
func (h *hearing) next(r remote.Record) (done bool) {
	switch r.Word {
	case "hash":
		list := strings.Fields(r.Rest)
		if len(list) == 0 || len(h.hashes)+len(list) > h.most || slices.ContainsFunc(list, func(s string) bool { return !hashName.MatchString(s) }) {
			return false
		}
		h.hashes = append(h.hashes, list...)
		return true
	case "filled":
		if h.filled != nil {
			h.filled()
		}
	}
	return false
}

// answer returns the script's answer to a step. It ignores the output of login scripts
// before it.
func (h *hearing) answer(step string, errs *remote.Answer, status remote.Status) (answer, error) {
	var said statement
	for _, r := range h.Records() {
		if err := failure(step, r, errs); err != nil {
			return answer{}, err
		}
		said = statement{r.Word, strings.Fields(r.Rest), h.hashes}
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
	return answer{}, &WorkerError{step, fmt.Sprintf("no answer, %s: %q", how, cmp.Or(errs.Trouble(), h.Trouble()))}
}

// A statement is the last record of an answer, and the hashes that came before it.
type statement struct {
	word   string
	args   []string
	hashes []string
}

// failure returns the error that the script reports, or nil.
func failure(step string, r remote.Record, errs *remote.Answer) error {
	switch r.Word {
	case "hash":
		return &WorkerError{step, fmt.Sprintf("answer not understood: %q", remote.Clean(r.Rest, 500))}
	case "busy":
		return &InUseError{remote.Clean(r.Rest, 200)}
	case "foreign":
		kind, target, _ := strings.Cut(r.Rest, " ")
		return &ForeignError{What: kind, Target: remote.Clean(target, 200)}
	case "error", "broken":
		reason := remote.Clean(r.Rest, 500)
		if detail := errs.Trouble(); detail != "" {
			reason += ": " + detail
		}
		err := &WorkerError{step, reason}
		if r.Word == "broken" {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	return nil
}

// mayAnswer returns the words that a step may answer with.
func mayAnswer(step string) []string {
	switch step {
	case "check":
		return []string{"same", "differs"}
	case "look":
		return []string{"lacks"}
	}
	return []string{"missing", "filled"}
}

// answer returns the statement's answer to a step. It returns false unless the statement is
// a whole answer to that step.
func (s statement) answer(step string) (ans answer, ok bool) {
	if !slices.Contains(mayAnswer(step), s.word) {
		return ans, false
	}
	ans = answer{word: s.word, missing: s.hashes}
	args := append(slices.Clip(s.args), "", "") // so that there are at least two arguments
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
